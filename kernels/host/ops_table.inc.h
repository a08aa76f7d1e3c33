// The table of one instruction set. Included last by each ops_<set>.cpp.
#pragma once

#include "ops_attention.inc.h"
#include "ops_rows.inc.h"

namespace onebit::ONEBIT_ISA_NAMESPACE {

extern const OpKernels kOpKernels;
const OpKernels kOpKernels = {
    .rms_norm = rms_norm,
    .rope = rope,
    .glu = glu,
    .add = add,
    .softcap = softcap,
    .store_key = store_key,
    .store_value = store_value,
    .attend = attend,
    .merge = merge,
    .finish = finish,
    .read = read,
    .exp = exp_all,
    .tanh = tanh_all,
};

}  // namespace onebit::ONEBIT_ISA_NAMESPACE
