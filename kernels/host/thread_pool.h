// A small thread pool for programs made of phases.
//
// A phase is a number of equal units of work; the next phase begins when all units of the last
// one are done. Every thread has a share of neighbouring units, the same for phases of as many
// units, and takes them in chunks that shrink; once through, it takes from the end of others'. A
// phase ends when its work is done, not when every thread has come: a thread that the system has
// paused between two chunks holds up nobody. Waiting threads spin for a moment, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace onebit {

class Phases {
  public:
    Phases() = default;
    Phases(const Phases&) = delete;
    Phases& operator=(const Phases&) = delete;
    virtual ~Phases() = default;

    virtual int count() const = 0;

    // Called once per phase by one thread, after all work of the earlier phases. Returns the
    // units of the phase; 0 when there is nothing (more) to do.
    virtual int begin(int phase) = 0;

    // Does units [first, last) of the phase. `thread` is 0 .. threads - 1.
    virtual void work(int phase, int first, int last, int thread) = 0;

    // Called when `thread` finds no more units of the phase, while others may still be at work: a
    // moment to prepare what comes, without waiting for anything.
    virtual void idle(int /*phase*/, int /*thread*/) {}
};

// The first unit of `thread`'s share of `units`; share `threads` begins at their end.
inline int share_begin(int units, int thread, int threads) {
    return static_cast<int>(static_cast<int64_t>(units) * thread / threads);
}

class ThreadPool {
  public:
    // `threads` counts the caller of run(), who works too.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Runs all phases; returns when the last one is done and no worker is inside any more.
    void run(Phases& phases);

  private:
    struct alignas(64) Counter {
        std::atomic<int> done{0};
        int units = 0;  // written before the phase is published
    };
    // What nobody has taken of a thread's share: the first unit, and the end in the upper half.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};
    };

    void worker(int thread);
    void walk(int thread);
    bool take(int phase, int thread, int& first, int& last);
    Share& share(int phase, int thread) {
        return shares_[static_cast<size_t>(phase) * static_cast<size_t>(threads()) +
                       static_cast<size_t>(thread)];
    }
    void advance(int phase);

    std::vector<std::thread> workers_;
    std::unique_ptr<Counter[]> counters_;
    std::unique_ptr<Share[]> shares_;  // [phase][thread]
    int capacity_ = 0;
    Phases* phases_ = nullptr;
    int count_ = 0;
    alignas(64) std::atomic<int> phase_{0};      // the phase at work; count_ once the run is over
    alignas(64) std::atomic<uint32_t> runs_{0};  // counts runs; workers sleep on it
    alignas(64) std::atomic<bool> open_{false};  // whether workers may enter the run
    std::atomic<int> inside_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace onebit
