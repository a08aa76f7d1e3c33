// The thread pool under a race detector: every unit runs once, phases never overlap, results of
// one phase are seen by the next, and begin() runs alone.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "thread_pool.h"

namespace {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

// Phase p adds one to every cell it owns, from what phase p - 1 left; plain memory on purpose.
class Steps final : public onebit::Phases {
  public:
    Steps(int phases, int units) : phases_(phases), cells_(static_cast<size_t>(units), 0) {}

    int count() const override { return phases_; }

    int begin(int phase) override {
        expect(phase == begun_, "phases begin in order, once");
        ++begun_;
        if (phase % 7 == 3) return 0;
        for (const int cell : cells_) expect(cell == worked_, "a phase sees all earlier work");
        ++worked_;
        return static_cast<int>(cells_.size());
    }

    void work(int, int first, int last, int) override {
        for (int i = first; i < last; ++i) ++cells_[static_cast<size_t>(i)];
    }

    void idle(int phase, int thread) override {
        expect(phase < phases_ && thread >= 0, "a thread idles in a phase");
    }

    void check() const {
        expect(begun_ == phases_, "all phases begin");
        for (const int cell : cells_) expect(cell == worked_, "every unit runs once");
    }

  private:
    int phases_;
    int begun_ = 0;
    int worked_ = 0;
    std::vector<int> cells_;
};

}  // namespace

int main() {
    for (const int threads : {1, 2, 3, 8}) {
        onebit::ThreadPool pool(threads);
        for (int run = 0; run < 200; ++run) {
            Steps steps(1 + run % 40, 1 + run * 13 % 97);
            pool.run(steps);
            steps.check();
        }
    }
    // Pools that never run, or are gone while their threads still wait, must end cleanly.
    for (int i = 0; i < 50; ++i) {
        onebit::ThreadPool idle(4);
        if (i % 2 == 0) continue;
        Steps steps(3, 5);
        idle.run(steps);
        steps.check();
    }
    return 0;
}
