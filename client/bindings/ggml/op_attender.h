// Attends one op of an engine: its own cells here, chunks of corpora by a requester, and merges.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "client/bindings/ggml/attached.h"
#include "client/bindings/ggml/corpus_contexts.h"
#include "client/bindings/ggml/mla_op.h"
#include "client/bindings/ggml/op_plan.h"
#include "client/bindings/ggml/reference_reader.h"
#include "client/calls.h"
#include "proto/base/clock.h"

namespace ckv::ggml {

// Counters of a process. Any thread may read them.
struct OpCounters {
  std::atomic<uint64_t> ops{0}, ops_routed{0}, ops_failed{0};
  std::atomic<uint64_t> rows{0}, rows_routed{0};  // query rows
  std::atomic<uint64_t> sent_bytes{0}, received_bytes{0}, prefetched_bytes{0};
};

// One thread at a time. It keeps its memory and its threads from op to op.
class OpAttender {
 public:
  // Query rows that are in work at once. They take 50 MB of scratch with DeepSeek's widths.
  static constexpr uint32_t kRowsAtOnceMax = 8192;

  struct Options {
    CorpusContexts::Options contexts = {};
    PartialDtype wire = PartialDtype::kF32;
    Duration timeout = std::chrono::seconds(10);
    // The chunks for tokens that see no reference; may be null.
    std::shared_ptr<const Attached> otherwise = nullptr;
    OpCounters* counters = nullptr;  // borrowed; may be null
  };
  OpAttender(RequesterSource requester, Options options);

  // How many threads attend the engine's cells, the caller's among them. 1 at first.
  void set_thread_count(uint32_t thread_count);

  // Attends the op and writes op.out. Queries are rounded to bf16 first. Cells are attended by this
  // process' kernel (attention/mla_partial.h) while the holders compute. Partials are merged in
  // this order: chunks, the longest range of cells, other cells. So the same cache and queries give
  // the same bits, if the wire is f32 and the fleet has one kernel target. A token that sees
  // nothing gets zeros. After an error op.out means nothing. The same op may be tried again.
  //   InvalidArgument     the mask or a width is none that ckv knows.
  //   DataLoss            a cell is damaged (OpPlan), or the answer is NaN.
  //   else                as CorpusContexts::Find and Requester::Attend.
  absl::Status Attend(const MlaOp& op);
  // The same, but only if a token attends something elsewhere: for an engine that has attended its
  // own cells already. Returns whether it has written op.out.
  absl::StatusOr<bool> AttendIfElsewhere(const MlaOp& op);

 private:
  absl::Status Plan(const MlaOp& op);
  void Count(const MlaOp& op, bool ok);
  absl::Status AttendPlanned(const MlaOp& op);
  // Attends tokens of the plan that all attend something elsewhere.
  absl::Status AttendRouted(const MlaOp& op, std::span<const TokenPlan> tokens);
  absl::Status Route(const MlaOp& op, std::span<const TokenPlan> tokens, Instant deadline);
  absl::Status MakeSegments(const MlaOp& op, std::span<const TokenPlan> tokens, Instant deadline);
  // Attends tokens that see cells of the engine alone.
  absl::Status AttendLocal(const MlaOp& op, std::span<const TokenPlan> tokens);
  void RoundQueries(const MlaOp& op, std::span<const TokenPlan> tokens);
  PartialView PlacePartials(const MlaOp& op, size_t token_count, bool with_far);
  CellRange MainRange(const TokenPlan& token) const;
  // Makes the pieces of these tokens' cells: the longest range of each to `main`, all others to
  // `rest`. The tokens' rows begin at `row_begin` of q_. If no token has another range, `rest` may
  // be none.
  void AddPieces(const MlaOp& op, std::span<const TokenPlan> tokens, uint32_t row_begin,
                 const PartialView& main, const PartialView& rest);
  void AddRest(const MlaOp& op, const TokenPlan& token, uint32_t row, const PartialView& out);
  // Merges the partials of a slice into the op's answer.
  void MergeOut(const MlaOp& op, std::span<const TokenPlan> tokens,
                std::span<const ConstPartialView> parts);
  void BeginPieces(const MlaOp& op, std::span<const TokenPlan> tokens);
  void AttendPieces(const MlaOp& op);
  void GrowPartials(size_t floats);

  const Options options_;
  CorpusContexts contexts_;
  ReferenceReader reader_;
  OpPlan plan_;
  uint32_t thread_count_ = 1;
  // At most two: engines use one number of threads for prompts and another for single tokens.
  std::vector<std::unique_ptr<WorkerPool>> pools_;
  WorkerPool* pool_ = nullptr;  // has thread_count_ threads; null until it is needed

  // The op in work has these.
  std::vector<uint16_t> q_;  // bf16 [rows][d_qk]
  PartialView main_, rest_;  // the partials of cells
  float *merged_m_ = nullptr, *merged_l_ = nullptr;
  std::vector<float> partials_;  // the partials of all rows, and m and l of their merge
  std::vector<AttentionPiece> pieces_;
  std::vector<uint32_t> limits_;  // cells that each row of a piece sees
  std::vector<int32_t> indices_;  // the selections of pieces
  std::vector<Segment> segments_;
  std::vector<std::shared_ptr<const Context>> segment_contexts_;
};

}  // namespace ckv::ggml
