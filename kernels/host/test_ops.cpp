// Row ops and attention of every instruction set against plain loops in double, on buffers that
// end where the data ends, so that a sanitizer sees every stray access.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ops.h"

namespace {

using onebit::Activation;
using onebit::AttentionCall;
using onebit::Isa;
using onebit::OpKernels;
using Floats = std::vector<float>;

std::mt19937 source(7);

int random_int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(source); }

Floats random_floats(int n, float scale = 1.0F) {
    std::normal_distribution<float> normal(0.0F, scale);
    Floats x(static_cast<size_t>(n));
    for (float& v : x) v = normal(source);
    return x;
}

void near(double got, double want, double bound, const std::string& what) {
    if (std::abs(got - want) <= bound * std::max(1.0, std::abs(want))) return;
    std::fprintf(stderr, "failed: %s: got %.9g, want %.9g\n", what.c_str(), got, want);
    std::exit(1);
}

void test_rows(const OpKernels& ops) {
    const int width = random_int(1, 100);
    const int groups = random_int(1, 4);
    const Floats x = random_floats(width * groups);
    const Floats w = random_floats(width);
    Floats out(x.size());
    ops.rms_norm(x.data(), w.data(), 1.0F, 1e-5F, groups, width, out.data());
    for (int g = 0; g < groups; ++g) {
        double squares = 0.0;
        for (int i = 0; i < width; ++i) {
            const double v = x[static_cast<size_t>(g * width + i)];
            squares += v * v;
        }
        const double inverse = 1.0 / std::sqrt(squares / width + 1e-5);
        for (int i = 0; i < width; ++i) {
            const auto at = static_cast<size_t>(g * width + i);
            near(out[at], x[at] * inverse * (w[static_cast<size_t>(i)] + 1.0), 1e-6, "rms_norm");
        }
    }
    const Floats gate = random_floats(width, 8.0F);
    const Floats up = random_floats(width);
    Floats gated(gate.size());
    ops.glu(Activation::Silu, gate.data(), up.data(), gated.data(), width);
    for (size_t i = 0; i < gate.size(); ++i) {
        near(gated[i], gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i], 1e-6,
             "silu");
    }
    ops.glu(Activation::Gelu, gate.data(), up.data(), gated.data(), width);
    for (size_t i = 0; i < gate.size(); ++i) {
        near(gated[i], 0.5 * gate[i] * (1.0 + std::erf(gate[i] * std::sqrt(0.5))) * up[i], 2e-6,
             "gelu");
    }
    Floats capped = gate;
    ops.softcap(capped.data(), 5.0F, width);
    for (size_t i = 0; i < gate.size(); ++i) {
        near(capped[i], 5.0 * std::tanh(gate[i] / 5.0), 1e-6, "softcap");
    }
    const int half = random_int(1, 40);
    const int dim = 2 * half + random_int(0, 5);
    Floats rotated = random_floats(dim);
    const Floats before = rotated;
    const Floats cos = random_floats(half);
    const Floats sin = random_floats(half);
    ops.rope(rotated.data(), cos.data(), sin.data(), 1, dim, half);
    for (int i = 0; i < half; ++i) {
        const auto a = static_cast<size_t>(i);
        const auto b = static_cast<size_t>(i + half);
        near(rotated[a], before[a] * cos[a] - before[b] * sin[a], 1e-6, "rope");
        near(rotated[b], before[b] * cos[a] + before[a] * sin[a], 1e-6, "rope");
    }
}

float through_bf16(float x, bool bf16) {
    if (!bf16) return x;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

void test_attention(const OpKernels& ops, bool bf16) {
    const int dim = random_int(1, 9) * 8;
    const int page_size = 16 * random_int(1, 3);
    const int rows = random_int(1, 9);
    const int group = random_int(1, 5);
    const int first = random_int(0, 600);
    const int context = first + rows;
    const int page_count = (context + page_size - 1) / page_size;
    std::vector<int32_t> pages(static_cast<size_t>(page_count));
    for (int i = 0; i < page_count; ++i) pages[static_cast<size_t>(i)] = page_count - 1 - i;

    const size_t item = bf16 ? 2 : 4;
    const auto width = static_cast<size_t>((dim + 15) / 16 * 16);
    const size_t key_bytes = static_cast<size_t>(page_size * dim) * item;
    const size_t page_bytes = key_bytes + static_cast<size_t>(page_size) * width * item;
    std::vector<std::byte> pool(page_bytes * pages.size());
    const Floats k = random_floats(context * dim);
    const Floats v = random_floats(context * dim);
    for (int p = 0; p < context; ++p) {
        std::byte* page =
            pool.data() +
            static_cast<size_t>(pages[static_cast<size_t>(p / page_size)]) * page_bytes;
        ops.store_key(k.data() + p * dim, page, p % page_size, dim, bf16);
        ops.store_value(v.data() + p * dim, page + key_bytes, p % page_size, dim, bf16);
    }
    const Floats q = random_floats(rows * group * dim);
    const int pairs = rows * group;
    const AttentionCall call{
        .kv = {pool.data(), page_bytes, 0, key_bytes, pages.data(), page_size, dim, bf16},
        .q = q.data(),
        .ldq = static_cast<ptrdiff_t>(group) * dim,
        .group = group,
        .first_position = first,
        .first_pair = 0,
        .pairs = pairs,
        .scale = 0.3F,
        .window = random_int(0, 1) * random_int(1, 300),
        .softcap = random_int(0, 1) == 0 ? 0.0F : 3.0F,
    };
    const int floats = onebit::attention_state_floats(dim);
    Floats state(static_cast<size_t>(pairs * floats), 0.0F);
    for (int i = 0; i < pairs; ++i) state[static_cast<size_t>(i * floats)] = -INFINITY;
    Floats scratch(static_cast<size_t>(onebit::attention_scratch_floats(dim)));
    const int segments = (context - 1) / onebit::kSegment + 1;
    ops.attend(call, 0, segments, state.data(), scratch.data());

    Floats out(static_cast<size_t>(dim));
    for (int pair = 0; pair < pairs; ++pair) {
        ops.finish(state.data() + pair * floats, out.data(), dim);
        const int position = first + pair / group;
        const int low = call.window > 0 ? std::max(0, position - call.window + 1) : 0;
        std::vector<double> score;
        for (int p = low; p <= position; ++p) {
            double s = 0.0;
            for (int d = 0; d < dim; ++d) {
                s += static_cast<double>(q[static_cast<size_t>(pair * dim + d)]) *
                     through_bf16(k[static_cast<size_t>(p * dim + d)], bf16);
            }
            s *= 0.3;
            score.push_back(call.softcap > 0.0F ? 3.0 * std::tanh(s / 3.0) : s);
        }
        const double top = *std::max_element(score.begin(), score.end());
        double total = 0.0;
        for (double& s : score) total += s = std::exp(s - top);
        for (int d = 0; d < dim; ++d) {
            double want = 0.0;
            for (int p = low; p <= position; ++p) {
                want += score[static_cast<size_t>(p - low)] / total *
                        through_bf16(v[static_cast<size_t>(p * dim + d)], bf16);
            }
            near(out[static_cast<size_t>(d)], want, 1e-5, "attention");
        }
    }
}

}  // namespace

int main() {
    for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512}) {
        if (!onebit::isa_supported(isa)) continue;
        const OpKernels& ops = onebit::op_kernels(isa);
        for (int i = 0; i < 200; ++i) test_rows(ops);
        for (int i = 0; i < 40; ++i) test_attention(ops, i % 2 == 1);
    }
    return 0;
}
