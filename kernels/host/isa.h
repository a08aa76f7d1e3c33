// Instruction sets that kernels are compiled for, and the choice among them at run time.
#pragma once

#include <cstdint>
#include <string_view>

namespace onebit {

// Ordered: each one needs all that the earlier ones need.
enum class Isa : uint8_t {
    Portable,    // baseline of the target, no intrinsics
    Avx2,        // AVX2, FMA, F16C
    Avx512,      // AVX-512 F, BW, VL, DQ
    Avx512Vnni,  // and VNNI, VBMI
};

// Whether this build holds kernels for `isa` and this machine can run them.
bool isa_supported(Isa isa);

// The best supported instruction set.
Isa best_isa();

// "portable", "avx2", "avx512", "avx512vnni".
std::string_view isa_name(Isa isa);

// Inverse of isa_name; false when there is no such name.
bool parse_isa(std::string_view name, Isa& isa);

}  // namespace onebit
