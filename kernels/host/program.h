// A plan as a native program: a list of phases over buffers that are laid out in advance.
//
// Python builds it once (see onebit/devices/cpu_compile.py); step() then runs a batch of rows
// without allocation. Phases come in three kinds:
//   rows       row-local ops in order: embed, norms, rope, add, glu, softcap, KV append, packing
//   linear     one GEMM role: strips of all its weights, with the op that follows fused in
//   attention  pairs of (row, head) over the KV pages
// The last attention keeps only the rows whose logits are wanted: all later phases run on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "linear.h"
#include "mapping.h"
#include "ops.h"
#include "thread_pool.h"

namespace onebit {

// Columns of a fused linear's results that a thread holds at a time, for a full batch of rows.
inline constexpr int kFusedColumns = 64;
// Row phases of at most this many rows run between two phases, on the thread that gets there.
inline constexpr int kSerialRows = 2;
// Rows of one unit of a row phase once there are many: neighbours in a sequence share the cache
// lines of their keys, so they stay on one thread.
inline constexpr int kRowsPerUnit = 16;
inline constexpr int kManyRows = 64;
// What a thread that waits fetches of the weights it will need next, at most.
inline constexpr size_t kIdleBytes = 16384;

struct ProgramShape {
    int max_rows;
    int context;    // positions of a sequence at most
    int pages;      // KV pages
    int page_size;  // positions per page, a multiple of 16
    int threads;
    Numerics numerics;
    Isa isa;
    bool kv_bf16;
};

// Indexes into the program's tables; -1 is none.
using ValueId = int;
using WeightId = int;
using VectorId = int;

struct RowOp {
    enum class Code : uint8_t { Embed, RmsNorm, Rope, Add, Glu, Softcap, Append, Pack };
    Code code;
    ValueId in = -1;   // Append: keys
    ValueId in2 = -1;  // Add: b; Glu: up; Append: values
    ValueId out = -1;
    int table = -1;      // Embed: weight; RmsNorm: vector; Rope: rope table; Append: KV layer
    int groups = 1;      // RmsNorm: parts; Rope: heads
    int width = 0;       // RmsNorm: of a part; Rope: head_dim; others: of the row
    float scale = 1.0F;  // Embed, Add; Softcap: the cap
    float offset = 0.0F;
    float eps = 0.0F;
    Activation act = Activation::Silu;
    unsigned forms = 0;  // Pack: bit per Numerics that the next linear phase reads; set by seal()
};

struct RowPhase {
    std::vector<RowOp> ops;
};

struct Piece {
    WeightId weight;
    VectorId bias;
    ValueId out;  // -1 when the fused op takes it
    float scale;
};

struct LinearPhase {
    enum class Then : uint8_t { Nothing, Add, Glu };
    std::vector<Piece> pieces;
    Then then = Then::Nothing;
    ValueId out = -1;    // of the fused op
    ValueId other = -1;  // Add: a
    float scale = 1.0F;  // Add: of the linear's result
    Activation act = Activation::Silu;
};

struct AttentionPhase {
    ValueId q, out;
    int layer;  // KV layer
    int heads;
    float scale;
    int window;
    float softcap;
    std::vector<ValueId> kept;  // last attention: other values that live on
    bool last;
};

struct Phase {
    std::variant<RowPhase, LinearPhase, AttentionPhase> body;
    std::string label;
    bool wanted = false;  // runs on the wanted rows only
};

struct Timing {
    uint64_t calls = 0;
    uint64_t nanoseconds = 0;
};

// One step's input; see onebit/devices/base.py. All arrays must outlive the step.
struct Batch {
    const int32_t* tokens;
    const int32_t* positions;
    const int32_t* sequences;
    int rows;
    const int32_t* page_tables;
    int sequence_count;
    int max_pages;
    const int32_t* logits_for;
    int wanted;
};

class Program final : Phases {
  public:
    explicit Program(const ProgramShape& shape);

    // Building, in any order before seal().
    WeightId add_weight(const Weight& weight);
    VectorId add_vector(std::vector<float> values);
    // A value of `width` columns at `offset` floats per row-block of the arena; offset -1 gives it
    // memory of its own with rows `width` floats apart.
    ValueId add_value(int width, int64_t offset);
    int add_rope(int half);
    int add_kv(int heads, int head_dim);
    void add_phase(Phase phase);
    void seal();

    // Throws std::invalid_argument when the batch breaks its contract; nothing has run then.
    void step(const Batch& batch);

    // Rope tables as [context, half]; the caller fills rows as positions grow.
    float* rope_cos(int table) { return ropes_[static_cast<size_t>(table)].cos.floats(); }
    float* rope_sin(int table) { return ropes_[static_cast<size_t>(table)].sin.floats(); }
    int rope_half(int table) const { return ropes_[static_cast<size_t>(table)].half; }
    ptrdiff_t stride(ValueId id) const { return values_[static_cast<size_t>(id)].ld; }
    float* value(ValueId id) { return values_[static_cast<size_t>(id)].data; }

    const ProgramShape& shape() const { return shape_; }
    size_t kv_bytes() const { return kv_pool_.size(); }
    const std::vector<Phase>& phases() const { return list_; }
    const std::vector<Timing>& timings() const { return timings_; }
    void time_phases(bool on);

  private:
    struct Value {
        int width;
        int64_t offset;
        ptrdiff_t ld;
        float* data;
        Mapping own;
    };
    struct RopeTable {
        int half;
        Mapping cos, sin;
    };
    struct KvLayer {
        int heads, head_dim;
        size_t offset;     // in a page
        size_t key_bytes;  // of one head in a page
        size_t value_bytes;
    };
    // Consecutive rows of one sequence that attend.
    struct Run {
        int row;      // in the batch
        int out_row;  // where the result goes
        int rows;
        int position;  // of the first row
        int sequence;
    };
    struct AttentionTask {
        int run;
        int kv_head;
        int first_pair;
        int pairs;
        int segment;  // -1: all of them
        int last_segment;
        int group;  // split tasks: index of the merge they belong to
    };
    // What one thread works in.
    struct Scratch {
        Mapping linear;
        Mapping outputs;
        Mapping attention;
    };

    int count() const override { return static_cast<int>(list_.size()); }
    int begin(int phase) override;
    void work(int phase, int first, int last, int thread) override;
    void idle(int phase, int thread) override;

    void check(const Batch& batch) const;
    void check_pages(const Batch& batch, int row) const;
    void find_runs();
    int rows_of(const Phase& phase) const { return phase.wanted ? batch_.wanted : batch_.rows; }

    static int rows_per_unit(int rows) { return rows < kManyRows ? 1 : kRowsPerUnit; }
    void row_ops(const RowPhase& phase, int first, int last, int rows);
    void row_op(const RowOp& op, int first, int last, int rows);
    void append(const RowOp& op, int row);
    void fetch_slots(const RowOp& op, int first, int last);
    // Where the first KV head of the layer lies in the page of a row's position.
    std::byte* slots(const KvLayer& layer, int row) const;

    int linear_units(const LinearPhase& phase) const;
    void linear(const LinearPhase& phase, int first, int last, int rows, Scratch& scratch);
    void fetch_strip(const LinearPhase& phase, int strip) const;
    void linear_piece(const Piece& piece, int first, int last, int rows, float* y, ptrdiff_t ldy,
                      Scratch& scratch);
    void linear_fused(const LinearPhase& phase, int first, int last, int rows, Scratch& scratch);

    int begin_attention(const AttentionPhase& phase);
    void keep_rows(const AttentionPhase& phase);
    void plan_attention(const AttentionPhase& phase, const std::vector<Run>& runs);
    void attention(const AttentionPhase& phase, const AttentionTask& task, Scratch& scratch);
    void finish_attention(const AttentionPhase& phase, const AttentionTask& task, const Run& run,
                          const float* state);
    void merge_segments(const AttentionPhase& phase, const AttentionTask& task, const Run& run,
                        Scratch& scratch);
    float* partial(int group, int segment, int head_dim);
    // Attention is split along the sequence while there are at most this many tasks.
    int split_limit() const { return 2 * pool_.threads(); }

    float* row(ValueId id, int index) {
        Value& value = values_[static_cast<size_t>(id)];
        return value.data + index * value.ld;
    }
    std::byte* packed(Numerics numerics) { return packed_[static_cast<size_t>(numerics)].data(); }

    ProgramShape shape_;
    const OpKernels& ops_;
    const LinearKernels& linear_;
    ThreadPool pool_;
    std::vector<Weight> weights_;
    std::vector<std::vector<float>> vectors_;
    std::vector<Value> values_;
    std::vector<RopeTable> ropes_;
    std::vector<KvLayer> kv_layers_;
    std::vector<Phase> list_;
    std::vector<const LinearPhase*> next_linear_;  // after each phase; null when there is none
    std::vector<Scratch> scratch_;
    Mapping arena_;
    Mapping packed_[3];
    Mapping kv_pool_;
    Mapping partials_;
    size_t page_bytes_ = 0;
    int segments_ = 0;  // of a whole context

    Batch batch_{};
    std::vector<Run> runs_;
    std::vector<Run> wanted_runs_;
    const std::vector<Run>* attention_runs_ = nullptr;
    std::vector<AttentionTask> tasks_;
    std::unique_ptr<std::atomic<int>[]> unmerged_;

    bool timing_ = false;
    std::vector<Timing> timings_;
    uint64_t phase_start_ = 0;
    int timed_phase_ = -1;
};

}  // namespace onebit
