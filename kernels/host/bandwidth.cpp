#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "ops.h"
#include "thread_pool.h"

namespace onebit {

namespace {

constexpr size_t kChunk = size_t{1} << 20;

class Reading final : public Phases {
  public:
    Reading(const std::vector<Bytes>& ranges, const OpKernels& ops) : ops_(ops) {
        for (const Bytes& range : ranges) {
            for (size_t at = 0; at < range.size; at += kChunk) {
                chunks_.push_back({range.data + at, std::min(kChunk, range.size - at)});
            }
        }
    }

    int count() const override { return 1; }
    int begin(int) override { return static_cast<int>(chunks_.size()); }
    void work(int, int first, int last, int) override {
        uint64_t seen = 0;
        for (int i = first; i < last; ++i) {
            const Bytes& chunk = chunks_[static_cast<size_t>(i)];
            seen ^= ops_.read(chunk.data, chunk.size);
        }
        sink_.fetch_xor(seen, std::memory_order_relaxed);
    }

  private:
    const OpKernels& ops_;
    std::vector<Bytes> chunks_;
    std::atomic<uint64_t> sink_{0};
};

}  // namespace

double read_bandwidth(const std::vector<Bytes>& ranges, int threads, int rounds, Isa isa) {
    using Clock = std::chrono::steady_clock;
    Reading reading(ranges, op_kernels(isa));
    ThreadPool pool(threads);
    size_t total = 0;
    for (const Bytes& range : ranges) total += range.size;
    double best = 0.0;
    for (int i = 0; i < rounds; ++i) {
        const auto start = Clock::now();
        pool.run(reading);
        const std::chrono::duration<double> spent = Clock::now() - start;
        best = std::max(best, static_cast<double>(total) / spent.count());
    }
    return best;
}

}  // namespace onebit
