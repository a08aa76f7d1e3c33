#include "ops.h"

namespace onebit {

namespace ops_portable {
extern const OpKernels kOpKernels;
}
#if defined(ONEBIT_X86)
namespace ops_avx2 {
extern const OpKernels kOpKernels;
}
namespace ops_avx512 {
extern const OpKernels kOpKernels;
}
#endif

const OpKernels& op_kernels(Isa isa) {
    switch (isa) {
#if defined(ONEBIT_X86)
        case Isa::Avx2: return ops_avx2::kOpKernels;
        case Isa::Avx512:
        case Isa::Avx512Vnni: return ops_avx512::kOpKernels;
#endif
        default: return ops_portable::kOpKernels;
    }
}

}  // namespace onebit
