// Zeroed memory that costs nothing until it is touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onebit {

class Mapping {
  public:
    // Large: in 2 MB pages where the system has them, for memory that is filled in long runs.
    enum class Pages : uint8_t { Small, Large };

    Mapping() = default;
    // Throws std::bad_alloc when the address space is used up. Aligned to a page.
    explicit Mapping(size_t bytes, Pages pages = Pages::Small);
    ~Mapping();
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::byte* data() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    size_t size() const { return size_; }

  private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace onebit
