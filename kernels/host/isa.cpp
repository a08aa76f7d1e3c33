#include "isa.h"

namespace onebit {

namespace {
constexpr Isa kAll[] = {Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni};
}

bool isa_supported(Isa isa) {
    if (isa == Isa::Portable) {
        return true;
    }
#if defined(__x86_64__) || defined(_M_X64)
    // __builtin_cpu_supports also asks whether the operating system saves the registers.
    bool ok = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
    if (isa >= Isa::Avx512) {
        ok = ok && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    }
    if (isa >= Isa::Avx512Vnni) {
        ok = ok && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    }
    return ok;
#else
    return false;
#endif
}

Isa best_isa() {
    Isa best = Isa::Portable;
    for (Isa isa : kAll) {
        if (isa_supported(isa)) {
            best = isa;
        }
    }
    return best;
}

std::string_view isa_name(Isa isa) {
    switch (isa) {
        case Isa::Avx2: return "avx2";
        case Isa::Avx512: return "avx512";
        case Isa::Avx512Vnni: return "avx512vnni";
        case Isa::Portable: break;
    }
    return "portable";
}

bool parse_isa(std::string_view name, Isa& isa) {
    for (Isa known : kAll) {
        if (name == isa_name(known)) {
            isa = known;
            return true;
        }
    }
    return false;
}

}  // namespace onebit
