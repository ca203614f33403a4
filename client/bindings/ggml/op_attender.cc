// Computes one attention op of an engine. Attend, in order:
//   1. Plan divides the op's tokens into those that attend chunks elsewhere and the others.
//   2. AttendRouted takes slices of the first: it submits the chunks to the requester, attends the
//      engine's own cells meanwhile, and merges. A NotFound is repeated once, with a new context.
//   3. AttendLocal takes slices of the others: it attends their cells and merges.
// Each token's cells are one main range and the rest, so that equal ranges of tokens are read once.
// Runs on the engine's thread; the pool has helpers.

#include "client/bindings/ggml/op_attender.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/backend.h"
#include "attention/bf16.h"
#include "attention/merge.h"
#include "client/ticket.h"
#include "proto/base/status.h"

namespace ckv::ggml {
namespace {

constexpr size_t kPoolCountMax = 2;

AttentionShape ShapeOf(const MlaOp& op) {
  return {.d_qk = op.d_qk,
          .d_v = op.d_v,
          .d_rope = op.d_qk - op.d_v,
          .row_dtype = RowDtype::kBf16,
          .softmax_scale = op.softmax_scale};
}

absl::Status CheckShape(const MlaOp& op) {
  // A row has room for the fields of a reference, and a query row for MayBeReference.
  if (op.d_qk < 4 || op.d_qk > kRowWidthMax || op.d_qk % 2 != 0 || op.d_v == 0 ||
      op.d_v > op.d_qk) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rows of %d values, %d of them latent; ckv attends even widths up to %d",
                        op.d_qk, op.d_v, kRowWidthMax));
  }
  if (op.head_count == 0 || op.head_count > OpAttender::kRowsAtOnceMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d heads, must be 1 to %d", op.head_count, OpAttender::kRowsAtOnceMax));
  }
  return absl::OkStatus();
}

// A NaN in an answer would be a NaN in the engine's logits, from which greedy sampling picks a
// token without an error.
absl::Status CheckNumbers(const float* l, size_t row_count) {
  for (size_t i = 0; i < row_count; ++i) {
    if (!std::isfinite(l[i])) {
      return absl::DataLossError("the answer is NaN: a query or a row that it attends has one");
    }
  }
  return absl::OkStatus();
}

// How many tokens, from the first on, follow one another in the op's answer.
size_t RunLength(std::span<const TokenPlan> tokens) {
  size_t count = 1;
  while (count < tokens.size() && tokens[count].stream == tokens[0].stream &&
         tokens[count].token == tokens[0].token + count) {
    ++count;
  }
  return count;
}

PartialView PartialAt(float* floats, size_t row_count, uint32_t d_v) {
  return {floats, floats + row_count * d_v, floats + row_count * (d_v + 1), PartialDtype::kF32};
}

void Add(std::atomic<uint64_t>& counter, uint64_t count) {
  counter.fetch_add(count, std::memory_order_relaxed);
}

}  // namespace

OpAttender::OpAttender(RequesterSource requester, Options options)
    : options_(std::move(options)), contexts_(std::move(requester), options_.contexts) {}

void OpAttender::set_thread_count(uint32_t thread_count) {
  thread_count = std::clamp(thread_count, 1u, WorkerPool::kThreadCountMax);
  if (thread_count != thread_count_) pool_ = nullptr;
  thread_count_ = thread_count;
}

absl::Status OpAttender::Attend(const MlaOp& op) {
  absl::Status status = Plan(op);
  if (status.ok()) status = AttendPlanned(op);
  Count(op, status.ok());
  return status;
}

absl::StatusOr<bool> OpAttender::AttendIfElsewhere(const MlaOp& op) {
  absl::Status status = Plan(op);
  if (status.ok() && plan_.routed_count() == 0) return false;
  if (status.ok()) status = AttendPlanned(op);
  Count(op, status.ok());
  if (!status.ok()) return status;
  return true;
}

absl::Status OpAttender::Plan(const MlaOp& op) {
  CKV_RETURN_IF_ERROR(CheckShape(op));
  return plan_.Make(op, options_.otherwise, reader_);
}

void OpAttender::Count(const MlaOp& op, bool ok) {
  if (options_.counters == nullptr) return;
  OpCounters& counters = *options_.counters;
  Add(counters.ops, 1);
  Add(counters.ops_routed, plan_.routed_count() > 0 ? 1 : 0);
  Add(counters.ops_failed, ok ? 0 : 1);
  Add(counters.rows, plan_.tokens().size() * op.head_count);
  Add(counters.rows_routed, uint64_t{plan_.routed_count()} * op.head_count);
}

absl::Status OpAttender::AttendPlanned(const MlaOp& op) {
  const size_t at_once = std::max(1u, kRowsAtOnceMax / op.head_count);
  std::span<const TokenPlan> routed = plan_.tokens().first(plan_.routed_count());
  while (!routed.empty()) {
    const size_t count = std::min(at_once, routed.size());
    CKV_RETURN_IF_ERROR(AttendRouted(op, routed.first(count)));
    routed = routed.subspan(count);
  }
  std::span<const TokenPlan> local = plan_.tokens().subspan(plan_.routed_count());
  while (!local.empty()) {
    const size_t count = std::min(at_once, local.size());
    CKV_RETURN_IF_ERROR(AttendLocal(op, local.first(count)));
    local = local.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status OpAttender::AttendRouted(const MlaOp& op, std::span<const TokenPlan> tokens) {
  RoundQueries(op, tokens);
  Clock& clock = *options_.contexts.clock;
  const Instant deadline = clock.Now() + options_.timeout;
  absl::Status status = Route(op, tokens, deadline);
  // The chunks moved after the context was opened, and the requester has noticed that by now.
  if (absl::IsNotFound(status)) status = Route(op, tokens, deadline);
  return status;
}

absl::Status OpAttender::Route(const MlaOp& op, std::span<const TokenPlan> tokens,
                               Instant deadline) {
  const uint32_t row_count = static_cast<uint32_t>(tokens.size()) * op.head_count;
  const PartialView far = PlacePartials(op, tokens.size(), /*with_far=*/true);
  CKV_RETURN_IF_ERROR(MakeSegments(op, tokens, deadline));
  CKV_ASSIGN_OR_RETURN(Requester * requester, contexts_.requester());
  LayerCall call;
  call.layer = op.layer;
  call.q = {q_.data(), row_count, op.d_qk};
  call.segments = segments_;
  call.wire = options_.wire;
  call.deadline = deadline;
  AttendReport report;
  auto ticket = requester->Submit(call, far, &report);
  absl::Status status = ticket.status();
  if (ticket.ok()) {
    BeginPieces(op, tokens);
    AddPieces(op, tokens, 0, main_, rest_);
    AttendPieces(op);
    status = ticket->Wait();
  }
  if (!status.ok()) {
    for (const TokenPlan& token : tokens) contexts_.DropAfter(status, plan_.list(token.list));
    return status;
  }
  MergeOut(op, tokens, std::array<ConstPartialView, 3>{far, main_, rest_});
  if (options_.counters != nullptr) {
    Add(options_.counters->sent_bytes, report.bytes_sent);
    Add(options_.counters->received_bytes, report.bytes_received);
    Add(options_.counters->prefetched_bytes, report.prefetched_bytes);
  }
  return CheckNumbers(merged_l_, row_count);
}

absl::Status OpAttender::MakeSegments(const MlaOp& op, std::span<const TokenPlan> tokens,
                                      Instant deadline) {
  segments_.clear();
  segment_contexts_.clear();
  for (size_t i = 0; i < tokens.size();) {
    size_t end = i + 1;
    while (end < tokens.size() && tokens[end].list == tokens[i].list) ++end;
    CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Context> context,
                         contexts_.Find(plan_.list(tokens[i].list), op, deadline));
    segments_.push_back({.row_begin = static_cast<uint32_t>(i) * op.head_count,
                         .row_count = static_cast<uint32_t>(end - i) * op.head_count,
                         .context = context.get()});
    segment_contexts_.push_back(std::move(context));
    i = end;
  }
  return absl::OkStatus();
}

absl::Status OpAttender::AttendLocal(const MlaOp& op, std::span<const TokenPlan> tokens) {
  RoundQueries(op, tokens);
  PlacePartials(op, tokens.size(), /*with_far=*/false);
  BeginPieces(op, tokens);
  const bool in_place = std::all_of(tokens.begin(), tokens.end(),
                                    [](const TokenPlan& token) { return token.range_count < 2; });
  if (!in_place) {
    AddPieces(op, tokens, 0, main_, rest_);
    AttendPieces(op);
    MergeOut(op, tokens, std::array<ConstPartialView, 2>{main_, rest_});
    return CheckNumbers(merged_l_, tokens.size() * op.head_count);
  }
  for (size_t i = 0; i < tokens.size();) {
    const size_t count = RunLength(tokens.subspan(i));
    const size_t row = i * op.head_count;
    AddPieces(op, tokens.subspan(i, count), static_cast<uint32_t>(row),
              {op.Out(tokens[i].stream, tokens[i].token), merged_m_ + row, merged_l_ + row}, {});
    i += count;
  }
  AttendPieces(op);
  return CheckNumbers(merged_l_, tokens.size() * op.head_count);
}

// Lays out the partials of a slice. Returns that of the chunks.
PartialView OpAttender::PlacePartials(const MlaOp& op, size_t token_count, bool with_far) {
  const auto row_count = static_cast<uint32_t>(token_count * op.head_count);
  const size_t floats = PartialFloats(row_count, op.d_v);
  GrowPartials((with_far ? 3 : 2) * floats + 2 * size_t{row_count});
  float* next = partials_.data();
  merged_m_ = next;
  merged_l_ = next + row_count;
  next += 2 * size_t{row_count};
  main_ = PartialAt(next, row_count, op.d_v);
  rest_ = PartialAt(next + floats, row_count, op.d_v);
  return with_far ? PartialAt(next + 2 * floats, row_count, op.d_v) : PartialView{};
}

void OpAttender::MergeOut(const MlaOp& op, std::span<const TokenPlan> tokens,
                          std::span<const ConstPartialView> parts) {
  for (size_t i = 0; i < tokens.size();) {
    const size_t count = RunLength(tokens.subspan(i));
    const size_t row = i * op.head_count;
    const PartialView out = {op.Out(tokens[i].stream, tokens[i].token), merged_m_ + row,
                             merged_l_ + row};
    std::array<ConstPartialView, 3> rows;
    for (size_t part = 0; part < parts.size(); ++part) {
      rows[part] = parts[part];
      rows[part].o = static_cast<const float*>(rows[part].o) + row * op.d_v;
      rows[part].m += row;
      rows[part].l += row;
    }
    MergePartials(std::span(rows).first(parts.size()), static_cast<uint32_t>(count) * op.head_count,
                  op.d_v, out);
    i += count;
  }
}

void OpAttender::RoundQueries(const MlaOp& op, std::span<const TokenPlan> tokens) {
  const size_t values = tokens.size() * op.head_count * op.d_qk;
  if (q_.size() < values) q_.resize(values);
  uint16_t* to = q_.data();
  const bool together = op.q_head_bytes == op.d_qk * sizeof(float);  // heads of a token
  for (const TokenPlan& token : tokens) {
    if (together) {
      Bf16FromFloats(op.Query(token.stream, token.token, 0), to, size_t{op.head_count} * op.d_qk);
      to += size_t{op.head_count} * op.d_qk;
      continue;
    }
    for (uint32_t head = 0; head < op.head_count; ++head, to += op.d_qk) {
      Bf16FromFloats(op.Query(token.stream, token.token, head), to, op.d_qk);
    }
  }
}

// Pieces point into both lists, so these get their size beforehand.
void OpAttender::BeginPieces(const MlaOp& op, std::span<const TokenPlan> tokens) {
  pieces_.clear();
  limits_.clear();
  limits_.reserve(tokens.size() * op.head_count);
  indices_.clear();
  size_t index_count = 0;
  for (const TokenPlan& token : tokens) {
    if (token.range_count < 3) continue;
    for (const CellRange& range : plan_.ranges(token)) index_count += range.end - range.begin;
  }
  indices_.reserve(index_count);
}

// The cells of a token that are attended as one range: the first of its longest ranges. Only what
// the token sees decides that, so its bits do not depend on the batch.
CellRange OpAttender::MainRange(const TokenPlan& token) const {
  if (token.range_count == 0) return {};
  const auto ranges = plan_.ranges(token);
  const auto shorter = [](const CellRange& a, const CellRange& b) {
    return a.end - a.begin < b.end - b.begin;
  };
  return *std::max_element(ranges.begin(), ranges.end(), shorter);
}

void OpAttender::AddPieces(const MlaOp& op, std::span<const TokenPlan> tokens, uint32_t row_begin,
                           const PartialView& main, const PartialView& rest) {
  for (size_t i = 0; i < tokens.size();) {
    const TokenPlan& first = tokens[i];
    const uint32_t begin = MainRange(first).begin;
    const uint32_t row = static_cast<uint32_t>(i) * op.head_count;
    AttentionPiece piece;
    piece.row_limits = limits_.data() + limits_.size();
    for (; i < tokens.size() && tokens[i].stream == first.stream; ++i) {
      const CellRange range = MainRange(tokens[i]);
      if (range.begin != begin) break;
      limits_.insert(limits_.end(), op.head_count, range.end - begin);
    }
    piece.q = {q_.data() + size_t{row_begin + row} * op.d_qk,
               static_cast<uint32_t>(i) * op.head_count - row, op.d_qk};
    // To the last cell, so that tokens that begin alike share what is read of them.
    piece.rows = op.Cells(first.stream, begin, op.cell_count - begin);
    piece.out = main.From(row, op.d_v);
    pieces_.push_back(piece);
  }
  if (rest.o == nullptr) return;
  std::fill_n(rest.l, tokens.size() * op.head_count, 0.0f);  // most have none
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint32_t row = static_cast<uint32_t>(i) * op.head_count;
    if (tokens[i].range_count > 1) {
      AddRest(op, tokens[i], row_begin + row, rest.From(row, op.d_v));
    }
  }
}

void OpAttender::AddRest(const MlaOp& op, const TokenPlan& token, uint32_t row,
                         const PartialView& out) {
  const CellRange main = MainRange(token);
  const auto ranges = plan_.ranges(token);
  AttentionPiece piece;
  piece.q = {q_.data() + size_t{row} * op.d_qk, op.head_count, op.d_qk};
  piece.out = out;
  if (ranges.size() == 2) {
    const CellRange& other = ranges[0] == main ? ranges[1] : ranges[0];
    piece.rows = op.Cells(token.stream, other.begin, other.end - other.begin);
  } else {
    const size_t begin = indices_.size();
    for (const CellRange& range : ranges) {
      for (uint32_t cell = range.begin; cell < range.end && range != main; ++cell) {
        indices_.push_back(static_cast<int32_t>(cell));
      }
    }
    piece.rows = op.Cells(token.stream, 0, op.cell_count);
    piece.selection = {indices_.data() + begin, static_cast<uint32_t>(indices_.size() - begin),
                       op.head_count};
  }
  pieces_.push_back(piece);
}

void OpAttender::AttendPieces(const MlaOp& op) {
  if (pool_ == nullptr) {
    const auto fits = [this](const auto& pool) { return pool->thread_count() == thread_count_; };
    auto found = std::find_if(pools_.begin(), pools_.end(), fits);
    if (found == pools_.end()) {
      if (pools_.size() >= kPoolCountMax) pools_.erase(pools_.begin());
      pools_.push_back(std::make_unique<WorkerPool>(thread_count_));
      found = pools_.end() - 1;
    }
    pool_ = found->get();
  }
  AttendPartials(ShapeOf(op), pieces_, *pool_);
}

void OpAttender::GrowPartials(size_t floats) {
  if (partials_.size() < floats) partials_.resize(floats);
}

}  // namespace ckv::ggml
