// Stand-alone check and benchmark of the linear kernels. Not part of the package.
//
//   bench_linear check             every instruction set equals the portable one, bit for bit
//   bench_linear shapes [isa]      Gop/s per shape and number of rows
//   bench_linear model [isa]       passes over the matrices of whole models, tokens/s
//
// Uses as many threads as there are processors, or ONEBIT_BENCH_THREADS.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "linear.h"

using namespace onebit;

namespace {

constexpr Kind kTiled[] = {Kind::Q4_1, Kind::Q4_0,     Kind::Q4NX,    Kind::Q4_K, Kind::Q8_A,
                           Kind::Q8_B, Kind::Q4_1_X64, Kind::Q8_IN_Q4};
constexpr Kind kDense[] = {Kind::BF16, Kind::F16, Kind::F32, Kind::INT8};
constexpr const char* kKindNames[] = {"bf16", "f32",  "f16",  "int8", "q4_1",     "q4_0",
                                      "q4nx", "q4_k", "q8_a", "q8_b", "q4_1_x64", "q8_in_q4"};
constexpr const char* kNumericsNames[] = {"f32", "i16", "i8"};
constexpr Numerics kNumerics[] = {Numerics::F32, Numerics::I16, Numerics::I8};

// 64-byte aligned memory.
struct Buffer {
    explicit Buffer(size_t bytes)
        : data(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64))) {}
    ~Buffer() { std::free(data); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    std::byte* data;
};

// Workers that take strips in runs until none is left.
class Pool {
public:
    explicit Pool(int threads) : threads_(threads) {
        for (int i = 1; i < threads; ++i) {
            workers_.emplace_back([this, i] { work(i); });
        }
    }
    ~Pool() {
        stop_ = true;
        round_.fetch_add(1);
        for (std::thread& worker : workers_) {
            worker.join();
        }
    }
    void run(const std::function<void(int)>& job) {
        job_ = &job;
        left_ = threads_ - 1;
        round_.fetch_add(1);
        job(0);
        while (left_.load() > 0) {
            pause();
        }
    }
    int threads() const { return threads_; }

private:
    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    void work(int index) {
        int seen = 0;
        while (true) {
            int spins = 0;
            while (round_.load() == seen) {
                pause();
                if (++spins > 20000) {
                    std::this_thread::yield();
                }
            }
            ++seen;
            if (stop_) {
                return;
            }
            (*job_)(index);
            left_.fetch_sub(1);
        }
    }
    int threads_;
    std::vector<std::thread> workers_;
    std::atomic<int> round_{0};
    std::atomic<int> left_{0};
    std::atomic<bool> stop_{false};
    const std::function<void(int)>* job_ = nullptr;
};

struct Matrix {
    Matrix(Kind kind, int rows, int cols, unsigned seed, size_t offset = 0)
        : weight{kind, nullptr, nullptr, rows, cols}, bytes(weight_bytes(weight) + offset) {
        std::mt19937 random(seed);
        weight.data = bytes.data() + offset;
        uint8_t* data = bytes.data() + offset;
        const size_t size = weight_bytes(weight);
        size_t i = 0;
        for (; i + 4 <= size; i += 4) {
            const auto word = static_cast<uint32_t>(random());
            std::memcpy(data + i, &word, 4);
        }
        for (; i < size; ++i) {
            data[i] = static_cast<uint8_t>(random());
        }
        if (kind == Kind::INT8) {
            scales.resize(static_cast<size_t>(rows) * static_cast<size_t>((cols + 31) / 32));
            for (float& s : scales) {
                s = static_cast<float>(random() % 1000) * 1e-5F;
            }
            weight.scale = scales.data();
        }
        make_sane(data, size, random);
    }

    // Random bits in scales would be infinities and NaN: replaces what is read as floats.
    void make_sane(uint8_t* data, size_t size, std::mt19937& random) const {
        auto put = [&](size_t at, uint16_t bits) { std::memcpy(data + at, &bits, 2); };
        auto small = [&] { return static_cast<uint16_t>(0x3c00U + random() % 0x80U); };  // ~0.01
        auto range = [&](size_t begin, size_t bytes_, bool negative) {
            for (size_t i = begin; i < begin + bytes_; i += 2) {
                put(i, static_cast<uint16_t>(small() | (negative ? 0x8000U : 0U)));
            }
        };
        const Kind kind = weight.kind;
        switch (kind) {
            case Kind::BF16: return range(0, size, false);
            case Kind::F16: return range(0, size, false);
            case Kind::F32:
                for (size_t i = 0; i + 4 <= size; i += 4) {
                    put(i + 2, small());
                }
                return;
            case Kind::INT8: return;
            default: break;
        }
        const size_t tile = kind == Kind::Q4_K                              ? 4736
                            : kind == Kind::Q8_A || kind == Kind::Q8_B ? 8704
                            : kind == Kind::Q4_1_X64                   ? 1280
                                                                       : 5120;
        for (size_t at = 0; at < size; at += tile) {
            if (kind == Kind::Q4_K) {
                range(at + 4608, 64, false);
                range(at + 4672, 64, true);
            } else if (kind == Kind::Q4_1_X64) {
                range(at, 128, false);
                range(at + 128, 128, true);
            } else if (kind == Kind::Q8_IN_Q4) {
                range(at, 512, false);
            } else {
                range(at, 512, false);
                if (tile == 5120) {
                    range(at + 512, 512, true);
                }
            }
        }
    }

    Weight weight;
    std::vector<uint8_t> bytes;
    std::vector<float> scales;
};

std::vector<float> gaussian(size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& v : values) {
        v = normal(random);
    }
    return values;
}

void multiply(const LinearKernels& kernels, const Weight& weight, Numerics numerics,
              const float* x, int rows, float* y, const float* bias, float scale, int split) {
    const Numerics used = numerics_for(weight.kind, numerics);
    Buffer packed(packed_bytes(used, rows, weight.cols));
    Buffer scratch(scratch_bytes(used, rows));
    for (int begin = 0; begin < rows; begin += 3) {
        kernels.pack_rows(used, x, weight.cols, rows, begin, std::min(begin + 3, rows), weight.cols,
                          packed.data);
    }
    for (int strip = 0; strip < strip_count(weight.rows); strip += split) {
        kernels.linear_strips(weight, used, packed.data, rows, strip,
                              std::min(strip + split, strip_count(weight.rows)), y, weight.rows,
                              bias, scale, scratch.data);
    }
}

int check() {
    int failures = 0;
    int cases = 0;
    std::mt19937 random(1);
    std::vector<Kind> kinds(std::begin(kTiled), std::end(kTiled));
    kinds.insert(kinds.end(), std::begin(kDense), std::end(kDense));
    const int shapes[][2] = {{32, 256}, {40, 300}, {96, 576}, {1, 32}, {65, 33}, {64, 1000}, {33, 17}};
    for (Kind kind : kinds) {
        for (const auto& shape : shapes) {
            const Matrix matrix(kind, shape[0], shape[1], static_cast<unsigned>(random()),
                                random() % 2);
            for (Numerics numerics : kNumerics) {
                const int rows = static_cast<int>(random() % 10 == 0 ? 140 : 1 + random() % 17);
                const auto x = gaussian(static_cast<size_t>(rows) * static_cast<size_t>(shape[1]),
                                        static_cast<unsigned>(random()));
                const auto bias = gaussian(static_cast<size_t>(shape[0]), 5);
                const size_t size = static_cast<size_t>(rows) * static_cast<size_t>(shape[0]);
                std::vector<float> want(size);
                multiply(linear_kernels(Isa::Portable), matrix.weight, numerics, x.data(), rows,
                         want.data(), bias.data(), 0.5F, 3);
                for (Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni}) {
                    if (!isa_supported(isa)) {
                        continue;
                    }
                    std::vector<float> got(size);
                    multiply(linear_kernels(isa), matrix.weight, numerics, x.data(), rows,
                             got.data(), bias.data(), 0.5F, 1);
                    std::vector<float> alone(static_cast<size_t>(shape[0]));
                    const int row = rows / 2;
                    multiply(linear_kernels(isa), matrix.weight, numerics,
                             x.data() + static_cast<ptrdiff_t>(row) * shape[1], 1, alone.data(),
                             bias.data(), 0.5F, 2);
                    const bool same = std::memcmp(want.data(), got.data(), size * 4) == 0;
                    const bool row_same =
                        std::memcmp(want.data() + static_cast<ptrdiff_t>(row) * shape[0],
                                    alone.data(), alone.size() * 4) == 0;
                    ++cases;
                    if (!same || !row_same) {
                        ++failures;
                        std::printf("%s %s %dx%d rows %d %s: batch %s, single row %s\n",
                                    kKindNames[static_cast<int>(kind)],
                                    kNumericsNames[static_cast<int>(numerics)], shape[0], shape[1],
                                    rows, std::string(isa_name(isa)).c_str(), same ? "ok" : "DIFFERS",
                                    row_same ? "ok" : "DIFFERS");
                    }
                }
            }
        }
    }
    std::printf("%d cases, %d failures\n", cases, failures);
    return failures != 0;
}

// ---- speed ----

int bench_threads() {
    const char* wish = std::getenv("ONEBIT_BENCH_THREADS");
    return wish != nullptr ? std::atoi(wish)
                           : static_cast<int>(std::thread::hardware_concurrency());
}

// Wall time; with one thread its own processor time, which a busy machine disturbs less.
double now() {
    timespec t{};
    clock_gettime(bench_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Layer {
    std::vector<Matrix> parts;  // share one packing
};

struct Runner {
    Runner(const LinearKernels& k, int threads) : kernels(k), pool(threads) {
        for (int i = 0; i < threads; ++i) {
            scratch.push_back(std::make_unique<Buffer>(scratch_bytes(Numerics::F32, 512)));
        }
    }

    void pack(Numerics numerics, const float* x, int rows, int cols, std::byte* packed) {
        std::atomic<int> next{0};
        const int run = std::max(1, rows / (4 * pool.threads()));
        pool.run([&](int) {
            for (int begin; (begin = next.fetch_add(run)) < rows;) {
                kernels.pack_rows(numerics, x, cols, rows, begin, std::min(begin + run, rows), cols,
                                  packed);
            }
        });
    }

    void linear(const Weight& weight, Numerics numerics, const std::byte* packed, int rows,
                float* y) {
        std::atomic<int> next{0};
        const int strips = strip_count(weight.rows);
        const int run = std::max(1, std::min(16, strips / (8 * pool.threads())));
        pool.run([&](int thread) {
            for (int begin; (begin = next.fetch_add(run)) < strips;) {
                kernels.linear_strips(weight, numerics, packed, rows, begin,
                                      std::min(begin + run, strips), y, weight.rows, nullptr, 1.0F,
                                      scratch[static_cast<size_t>(thread)]->data);
            }
        });
    }

    const LinearKernels& kernels;
    Pool pool;
    std::vector<std::unique_ptr<Buffer>> scratch;
};

void shapes(const LinearKernels& kernels, Kind kind) {
    Runner runner(kernels, bench_threads());
    const int sizes[][2] = {{1536, 1536}, {256, 1536}, {8960, 1536}, {1536, 8960},
                            {1536, 576},  {576, 1536}, {576, 576},   {192, 576}};
    std::printf("Gop/s, %s, rows 1 / 8 / 32 / 128 / 512\n", kKindNames[static_cast<int>(kind)]);
    for (const auto& size : sizes) {
        const Matrix matrix(kind, size[0], size[1], 1);
        std::printf("%5d x %4d", size[0], size[1]);
        for (Numerics numerics : kNumerics) {
            if (numerics_for(kind, numerics) != numerics) {
                continue;
            }
            std::printf("   %s", kNumericsNames[static_cast<int>(numerics)]);
            for (int rows : {1, 8, 32, 128, 512}) {
                const auto x = gaussian(static_cast<size_t>(rows) * static_cast<size_t>(size[1]), 2);
                std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(size[0]));
                Buffer packed(packed_bytes(numerics, rows, size[1]));
                runner.pack(numerics, x.data(), rows, size[1], packed.data);
                double best = 1e9;
                const double begin = now();
                for (int i = 0; i < 200 && (i < 4 || now() - begin < 0.08); ++i) {
                    const double start = now();
                    runner.linear(matrix.weight, numerics, packed.data, rows, y.data());
                    best = std::min(best, now() - start);
                }
                std::printf(" %4.0f", 2e-9 * size[0] * size[1] * rows / best);
            }
        }
        std::printf("\n");
        std::fflush(stdout);
    }
}

struct Dims {
    const char* name;
    int hidden, inter, kv, layers, vocab;
};

// One pass over all matrices of a model; every layer has weights of its own.
void model(const LinearKernels& kernels, const Dims& dims, Kind kind) {
    Runner runner(kernels, bench_threads());
    std::vector<Layer> layers;
    unsigned seed = 0;
    auto layer = [&](std::initializer_list<int> outs, int cols) {
        Layer made;
        for (int rows : outs) {
            made.parts.emplace_back(kind, rows, cols, ++seed);
        }
        layers.push_back(std::move(made));
    };
    for (int i = 0; i < dims.layers; ++i) {
        layer({dims.hidden, dims.kv, dims.kv}, dims.hidden);
        layer({dims.hidden}, dims.hidden);
        layer({dims.inter, dims.inter}, dims.hidden);
        layer({dims.hidden}, dims.inter);
    }
    layer({dims.vocab}, dims.hidden);
    size_t bytes = 0;
    for (const Layer& l : layers) {
        for (const Matrix& m : l.parts) {
            bytes += m.bytes.size();
        }
    }
    // A plain read of the same bytes, for comparison.
    double read = 1e9;
    for (int i = 0; i < 3; ++i) {
        const double start = now();
        std::atomic<size_t> next{0};
        std::atomic<uint64_t> sink{0};
        runner.pool.run([&](int) {
            uint64_t sum = 0;
            for (size_t at; (at = next.fetch_add(1)) < layers.size();) {
                for (const Matrix& m : layers[at].parts) {
                    const uint8_t* p = m.bytes.data();
                    for (size_t b = 0; b + 64 <= m.bytes.size(); b += 64) {
                        __builtin_prefetch(p + b + 4096, 0, 2);
                        uint64_t word;
                        std::memcpy(&word, p + b, 8);
                        sum += word;
                    }
                }
            }
            sink += sum;
        });
        read = std::min(read, now() - start);
    }
    std::printf("%s %s: %.0f MB, plain read %.1f GB/s\n", dims.name,
                kKindNames[static_cast<int>(kind)], static_cast<double>(bytes) * 1e-6,
                static_cast<double>(bytes) * 1e-9 / read);
    const int widest = std::max(dims.inter, dims.vocab);
    for (Numerics numerics : kNumerics) {
        if (numerics_for(kind, numerics) != numerics) {
            continue;
        }
        std::printf("  %s", kNumericsNames[static_cast<int>(numerics)]);
        for (int rows : {1, 2, 4, 8, 16, 32, 128, 512}) {
            const auto x = gaussian(static_cast<size_t>(rows) * static_cast<size_t>(dims.inter), 3);
            const size_t outs = rows <= 16 ? static_cast<size_t>(rows) * static_cast<size_t>(widest)
                                           : static_cast<size_t>(rows) *
                                                 static_cast<size_t>(std::max(dims.inter, dims.hidden));
            std::vector<float> y(std::max(outs, static_cast<size_t>(dims.vocab)));
            Buffer packed(packed_bytes(numerics, rows, dims.inter));
            double best = 1e9;
            const double begin = now();
            for (int i = 0; i < 20 && (i < 2 || now() - begin < 0.5); ++i) {
                const double start = now();
                for (const Layer& l : layers) {
                    const bool head = &l == &layers.back();
                    const int count = head && rows > 16 ? 1 : rows;
                    const int cols = l.parts[0].weight.cols;
                    runner.pack(numerics, x.data(), count, cols, packed.data);
                    for (const Matrix& m : l.parts) {
                        runner.linear(m.weight, numerics, packed.data, count, y.data());
                    }
                }
                best = std::min(best, now() - start);
            }
            std::printf("  M%d %.0f t/s", rows, rows / best);
            if (rows == 1) {
                std::printf(" (%.1f GB/s)", static_cast<double>(bytes) * 1e-9 / best);
            }
            std::fflush(stdout);
        }
        std::printf("\n");
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "check";
    Isa isa = best_isa();
    if (argc > 2 && (!parse_isa(argv[2], isa) || !isa_supported(isa))) {
        std::fprintf(stderr, "%s: not supported here\n", argv[2]);
        return 2;
    }
    Kind kind = Kind::Q4_1;
    for (int i = 0; argc > 3 && i < 12; ++i) {
        if (std::string(argv[3]) == kKindNames[i]) {
            kind = static_cast<Kind>(i);
        }
    }
    const LinearKernels& kernels = linear_kernels(isa);
    if (what == "check") {
        return check();
    }
    if (what == "shapes") {
        shapes(kernels, kind);
    } else if (what == "model") {
        model(kernels, {"135M", 576, 1536, 192, 30, 49152}, kind);
        model(kernels, {"1.5B", 1536, 8960, 256, 28, 151936}, kind);
    }
    return 0;
}
