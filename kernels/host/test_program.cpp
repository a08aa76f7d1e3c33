// A small program of every phase kind, for the sanitizers: logits must be the same bytes for any
// number of threads and any chunking.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "program.h"

namespace {

using namespace onebit;

constexpr int kHidden = 40;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 24;
constexpr int kInter = 72;
constexpr int kVocab = 50;
constexpr int kContext = 600;
constexpr int kPageSize = 32;

std::mt19937 source(3);

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

// Weights of one layer and the embedding, kept alive for all programs.
struct Model {
    std::vector<std::vector<uint8_t>> bytes;

    Weight dense(int rows, int cols) {
        std::normal_distribution<float> normal(0.0F, 0.2F);
        std::vector<uint8_t> data(static_cast<size_t>(rows * cols) * sizeof(float));
        for (size_t i = 0; i < data.size(); i += sizeof(float)) {
            const float x = normal(source);
            std::memcpy(data.data() + i, &x, sizeof x);
        }
        bytes.push_back(std::move(data));
        return {Kind::F32, bytes.back().data(), nullptr, rows, cols};
    }

    // Random 4-bit codes, every scale 1/64 and every zero -1/8.
    Weight tiled(int rows, int cols) {
        const Weight shape{Kind::Q4_1, nullptr, nullptr, rows, cols};
        std::vector<uint8_t> data(weight_bytes(shape));
        for (size_t tile = 0; tile < data.size(); tile += 5120) {
            for (size_t i = 0; i < 5120; ++i) data[tile + i] = static_cast<uint8_t>(source());
            for (size_t i = 0; i < 512; i += 2) {
                const uint16_t d = 0x3C80;
                const uint16_t m = 0xBE00;
                std::memcpy(data.data() + tile + i, &d, sizeof d);
                std::memcpy(data.data() + tile + 512 + i, &m, sizeof m);
            }
        }
        bytes.push_back(std::move(data));
        return {Kind::Q4_1, bytes.back().data(), nullptr, rows, cols};
    }

    Weight embed = dense(kVocab, kHidden);
    Weight q = tiled(kHeads * kHeadDim, kHidden);
    Weight k = tiled(kKvHeads * kHeadDim, kHidden);
    Weight v = dense(kKvHeads * kHeadDim, kHidden);
    Weight o = tiled(kHidden, kHeads* kHeadDim);
    Weight gate = tiled(kInter, kHidden);
    Weight up = tiled(kInter, kHidden);
    Weight down = tiled(kHidden, kInter);
};

struct Made {
    std::unique_ptr<Program> program;
    ValueId logits;
};

Made make(const Model& model, int threads, int max_rows, bool bf16) {
    auto program = std::make_unique<Program>(
        ProgramShape{max_rows, kContext, 20, kPageSize, threads, Numerics::I16, best_isa(), bf16});
    Program& p = *program;
    using Code = RowOp::Code;
    const VectorId ones = p.add_vector(std::vector<float>(kHidden, 1.0F));
    const int rope = p.add_rope(kHeadDim / 2);
    for (int i = 0; i < kContext * kHeadDim / 2; ++i) {
        p.rope_cos(rope)[i] = 0.8F;
        p.rope_sin(rope)[i] = 0.6F;
    }
    int64_t at = 0;
    const auto value = [&](int width) {
        const ValueId id = p.add_value(width, at);
        at += (width + 15) / 16 * 16;
        return id;
    };
    const ValueId h = value(kHidden);
    const ValueId x = value(kHidden);
    const ValueId q = value(kHeads * kHeadDim);
    const ValueId k = value(kKvHeads * kHeadDim);
    const ValueId v = value(kKvHeads * kHeadDim);
    const ValueId a = value(kHeads * kHeadDim);
    const ValueId m = value(kInter);
    const ValueId logits = p.add_value(kVocab, -1);
    const RowOp norm{
        .code = Code::RmsNorm, .in = h, .out = x, .table = ones, .width = kHidden, .eps = 1e-5F};
    const RowOp pack{.code = Code::Pack, .in = x, .width = kHidden};
    const auto piece = [&](const Weight& weight, ValueId out) {
        return Piece{p.add_weight(weight), -1, out, 1.0F};
    };
    RowOp first{.code = Code::Embed, .out = h, .table = p.add_weight(model.embed)};
    for (int layer = 0; layer < 2; ++layer) {
        const int kv = p.add_kv(kKvHeads, kHeadDim);
        std::vector<RowOp> begin{norm, pack};
        if (layer == 0) begin.insert(begin.begin(), first);
        p.add_phase({RowPhase{begin}, "norm", false});
        p.add_phase(
            {LinearPhase{{piece(model.q, q), piece(model.k, k), piece(model.v, v)}}, "QKV", false});
        p.add_phase(
            {RowPhase{
                 {{.code = Code::Rope, .in = q, .table = rope, .groups = kHeads, .width = kHeadDim},
                  {.code = Code::Rope,
                   .in = k,
                   .table = rope,
                   .groups = kKvHeads,
                   .width = kHeadDim},
                  {.code = Code::Append, .in = k, .in2 = v, .table = kv}}},
             "rope", false});
        const bool last = layer == 1;
        p.add_phase({AttentionPhase{q, a, kv, kHeads, 0.2F, layer == 0 ? 100 : 0, 0.0F, {h}, last},
                     "attention", last});
        p.add_phase(
            {RowPhase{{{.code = Code::Pack, .in = a, .width = kHeads * kHeadDim}}}, "pack", last});
        p.add_phase({LinearPhase{{piece(model.o, -1)}, LinearPhase::Then::Add, h, h}, "O", last});
        p.add_phase({RowPhase{{norm, pack}}, "norm", last});
        p.add_phase(
            {LinearPhase{{piece(model.gate, -1), piece(model.up, -1)}, LinearPhase::Then::Glu, m},
             "GU", last});
        p.add_phase({RowPhase{{{.code = Code::Pack, .in = m, .width = kInter}}}, "pack", last});
        p.add_phase(
            {LinearPhase{{piece(model.down, -1)}, LinearPhase::Then::Add, h, h}, "D", last});
    }
    p.add_phase({RowPhase{{norm, pack}}, "norm", true});
    p.add_phase({LinearPhase{{piece(model.embed, logits)}}, "HEAD", true});
    p.seal();
    return {std::move(program), logits};
}

// Logits of every position of one sequence, `chunk` rows a step.
std::vector<float> run(const Made& made, const std::vector<int32_t>& tokens, int chunk) {
    const auto count = static_cast<int>(tokens.size());
    std::vector<int32_t> pages;
    for (int i = 0; i * kPageSize < count; ++i) pages.push_back(19 - i);
    std::vector<float> out;
    for (int first = 0; first < count; first += chunk) {
        const int rows = std::min(chunk, count - first);
        std::vector<int32_t> positions;
        std::vector<int32_t> wanted;
        for (int i = 0; i < rows; ++i) {
            positions.push_back(first + i);
            wanted.push_back(i);
        }
        const std::vector<int32_t> sequences(static_cast<size_t>(rows), 0);
        made.program->step({tokens.data() + first, positions.data(), sequences.data(), rows,
                            pages.data(), 1, static_cast<int>(pages.size()), wanted.data(), rows});
        const float* logits = made.program->value(made.logits);
        out.insert(out.end(), logits, logits + static_cast<ptrdiff_t>(rows) * kVocab);
    }
    return out;
}

}  // namespace

int main() {
    const Model model;
    std::vector<int32_t> tokens(550);
    for (int32_t& token : tokens) token = static_cast<int32_t>(source() % kVocab);
    for (const bool bf16 : {false, true}) {
        const std::vector<float> want = run(make(model, 1, 128, bf16), tokens, 128);
        for (const float x : want) expect(x == x, "logits are numbers");
        expect(run(make(model, 2, 64, bf16), tokens, 64) == want, "2 threads");
        expect(run(make(model, 4, 200, bf16), tokens, 37) == want, "4 threads, other chunks");
        expect(run(make(model, 3, 8, bf16), tokens, 1) == want, "3 threads, one row a step");
    }
    return 0;
}
