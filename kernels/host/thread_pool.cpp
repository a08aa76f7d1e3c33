#include "thread_pool.h"

#include <algorithm>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace onebit {

namespace {

// About 30 microseconds: longer than the serial work between phases, shorter than a time slice.
constexpr int kSpins = 1500;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline uint64_t joined(int first, int last) {
    return static_cast<uint64_t>(last) << 32U | static_cast<uint32_t>(first);
}

// Waits until `value` differs from `old` and returns it.
template <typename T>
T wait_change(const std::atomic<T>& value, T old) {
    for (int i = 0; i < kSpins; ++i) {
        const T now = value.load(std::memory_order_acquire);
        if (now != old) return now;
        relax();
    }
    for (;;) {
        value.wait(old, std::memory_order_acquire);
        const T now = value.load(std::memory_order_acquire);
        if (now != old) return now;
    }
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    runs_.fetch_add(1);
    runs_.notify_all();
    for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run(Phases& phases) {
    count_ = phases.count();
    if (count_ > capacity_) {
        counters_ = std::make_unique<Counter[]>(static_cast<size_t>(count_));
        shares_ = std::make_unique<Share[]>(static_cast<size_t>(count_) *
                                            static_cast<size_t>(threads()));
        capacity_ = count_;
    }
    for (int i = 0; i < count_; ++i) {
        counters_[static_cast<size_t>(i)].done.store(0, std::memory_order_relaxed);
    }
    phases_ = &phases;
    advance(-1);
    if (workers_.empty()) {
        walk(0);
        return;
    }
    open_.store(true);
    runs_.fetch_add(1);
    runs_.notify_all();
    walk(0);
    open_.store(false);
    // A worker counts itself in before it looks at open_: it is either seen here or turns back.
    for (int spins = 0; inside_.load() != 0; ++spins) {
        if (spins < kSpins) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
}

void ThreadPool::worker(int thread) {
    uint32_t seen = 0;
    for (;;) {
        seen = wait_change(runs_, seen);
        if (stop_.load()) return;
        inside_.fetch_add(1);
        if (open_.load()) walk(thread);
        inside_.fetch_sub(1);
    }
}

void ThreadPool::walk(int thread) {
    int phase = phase_.load(std::memory_order_acquire);
    while (phase < count_) {
        Counter& counter = counters_[static_cast<size_t>(phase)];
        int first = 0;
        int last = 0;
        bool finished = false;
        while (take(phase, thread, first, last)) {
            phases_->work(phase, first, last, thread);
            const int taken = last - first;
            finished =
                counter.done.fetch_add(taken, std::memory_order_acq_rel) + taken == counter.units;
        }
        if (finished) {
            advance(phase);
            phase = phase_.load(std::memory_order_acquire);
        } else {
            phases_->idle(phase, thread);
            phase = wait_change(phase_, phase);
        }
    }
}

bool ThreadPool::take(int phase, int thread, int& first, int& last) {
    for (int i = 0; i < threads(); ++i) {
        std::atomic<uint64_t>& left = share(phase, (thread + i) % threads()).left;
        uint64_t now = left.load(std::memory_order_relaxed);
        uint64_t then = 0;
        do {
            first = static_cast<int>(now & 0xffffffffU);
            last = static_cast<int>(now >> 32U);
            if (first >= last) break;
            const int taken = std::max(1, (last - first) / 2);
            if (i == 0) {
                then = joined(first + taken, last);
                last = first + taken;
            } else {
                then = joined(first, last - taken);
                first = last - taken;
            }
        } while (!left.compare_exchange_weak(now, then, std::memory_order_relaxed));
        if (first < last) return true;
    }
    return false;
}

void ThreadPool::advance(int phase) {
    int units = 0;
    while (++phase < count_) {
        units = phases_->begin(phase);
        if (units > 0) {
            counters_[static_cast<size_t>(phase)].units = units;
            for (int i = 0; i < threads(); ++i) {
                const uint64_t all = joined(share_begin(units, i, threads()),
                                            share_begin(units, i + 1, threads()));
                share(phase, i).left.store(all, std::memory_order_relaxed);
            }
            break;
        }
    }
    phase_.store(phase, std::memory_order_release);
    if (!workers_.empty()) phase_.notify_all();
}

}  // namespace onebit
