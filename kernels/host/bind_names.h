// Names of the Python side for the enumerations of the C++ side.
#pragma once

#include <iterator>
#include <stdexcept>
#include <string>

#include "isa.h"
#include "linear.h"
#include "ops.h"

namespace onebit {

inline Isa named_isa(const std::string& name) {
    Isa isa;
    if (!parse_isa(name, isa)) throw std::invalid_argument("unknown instruction set: " + name);
    if (!isa_supported(isa)) {
        throw std::invalid_argument("this machine or build lacks the instruction set: " + name);
    }
    return isa;
}

inline Activation named_activation(const std::string& name) {
    if (name == "silu") return Activation::Silu;
    if (name == "gelu_tanh") return Activation::GeluTanh;
    if (name == "gelu") return Activation::Gelu;
    throw std::invalid_argument("unknown activation: " + name);
}

inline Numerics named_numerics(const std::string& name) {
    if (name == "f32") return Numerics::F32;
    if (name == "i16") return Numerics::I16;
    if (name == "i8") return Numerics::I8;
    throw std::invalid_argument("unknown numerics: " + name);
}

inline Kind named_kind(const std::string& name) {
    constexpr const char* names[] = {"bf16", "f32",  "f16",  "int8", "q4_1",     "q4_0",
                                     "q4nx", "q4_k", "q8_a", "q8_b", "q4_1_x64", "q8_in_q4"};
    for (uint8_t i = 0; i < std::size(names); ++i) {
        if (name == names[i]) return static_cast<Kind>(i);
    }
    throw std::invalid_argument("unknown tensor kind: " + name);
}

}  // namespace onebit
