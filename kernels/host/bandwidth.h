// What a tuned loop reads per second: the ceiling that memory-bound decode is measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isa.h"

namespace onebit {

struct Bytes {
    const uint8_t* data;
    size_t size;
};

// Bytes per second of one pass over all `ranges`, shared by `threads` in chunks; the best of
// `rounds` passes. Ranges should be much larger than the last cache to measure memory.
double read_bandwidth(const std::vector<Bytes>& ranges, int threads, int rounds, Isa isa);

}  // namespace onebit
