// A small thread pool for programs made of phases.
//
// A phase is a number of equal units of work; the next phase begins when all units of the last
// one are done. Threads take units in chunks that shrink towards the phase's end. A phase ends
// when its work is done, not when every thread has come: a thread that the system has paused
// between two chunks holds up nobody. Waiting threads spin for a moment, then sleep.
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
};

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
        std::atomic<int> next{0};  // first unit nobody has taken
        std::atomic<int> done{0};
        int units = 0;  // written before the phase is published
    };

    void worker(int thread);
    void walk(int thread);
    bool take(Counter& counter, int& first, int& last) const;
    void advance(int phase);

    std::vector<std::thread> workers_;
    std::unique_ptr<Counter[]> counters_;
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
