#include "mapping.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace onebit {

Mapping::Mapping(size_t bytes, [[maybe_unused]] Pages pages) {
    if (bytes == 0) return;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(p);
    size_ = bytes;
#if defined(MADV_HUGEPAGE)
    if (pages == Pages::Large) madvise(p, bytes, MADV_HUGEPAGE);  // a wish: it may fail
#endif
}

Mapping::~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace onebit
