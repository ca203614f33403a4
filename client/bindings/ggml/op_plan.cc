#include "client/bindings/ggml/op_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ggml {

void OpPlan::Clear() {
  tokens_.clear();
  ranges_.clear();
  lists_.clear();
  routed_count_ = 0;
}

absl::Status OpPlan::Make(const MlaOp& op, const std::shared_ptr<const Attached>& otherwise,
                          ReferenceReader& reader) {
  Clear();
  const uint32_t list = otherwise == nullptr ? TokenPlan::kNoList : ListOf({otherwise});
  for (uint32_t stream = 0; stream < op.stream_count; ++stream) {
    if (absl::Status status = AddStream(op, stream, list, reader); !status.ok()) {
      Clear();
      return status;
    }
  }
  const auto routed = [](const TokenPlan& token) { return token.list != TokenPlan::kNoList; };
  routed_count_ = static_cast<uint32_t>(std::count_if(tokens_.begin(), tokens_.end(), routed));
  const auto before = [](const TokenPlan& a, const TokenPlan& b) { return a.list < b.list; };
  if (!std::is_sorted(tokens_.begin(), tokens_.end(), before)) {
    std::stable_sort(tokens_.begin(), tokens_.end(), before);
  }
  return absl::OkStatus();
}

absl::Status OpPlan::AddStream(const MlaOp& op, uint32_t stream, uint32_t otherwise,
                               ReferenceReader& reader) {
  const size_t first = tokens_.size();
  seen_.clear();
  for (uint32_t token = 0; token < op.token_count; ++token) {
    TokenPlan plan = {.stream = stream, .token = token, .list = otherwise};
    plan.range_begin = static_cast<uint32_t>(seen_.size());
    CKV_RETURN_IF_ERROR(AppendVisible(op.Mask(stream, token), op.cell_count, seen_));
    plan.range_count = static_cast<uint32_t>(seen_.size()) - plan.range_begin;
    tokens_.push_back(plan);
  }
  FindCandidates(op, stream);
  last_met_.clear();
  uint32_t last_list = otherwise;
  for (TokenPlan& token : std::span(tokens_).subspan(first)) {
    CKV_RETURN_IF_ERROR(Split(op, token, reader));
    if (met_.empty()) continue;
    if (met_ != last_met_) {
      AttachedList list;
      for (const uint32_t i : met_) list.push_back(candidates_[i].attached);
      SortAttached(list);
      last_list = ListOf(std::move(list));
      last_met_ = met_;
    }
    token.list = last_list;
  }
  return absl::OkStatus();
}

void OpPlan::FindCandidates(const MlaOp& op, uint32_t stream) {
  candidates_.clear();
  uint32_t begin = op.cell_count, end = 0;
  for (const CellRange& range : seen_) {
    begin = std::min(begin, range.begin);
    end = std::max(end, range.end);
  }
  for (uint32_t cell = begin; cell < end; ++cell) {
    if (MayBeReference(op.Cell(stream, cell))) candidates_.push_back({cell, nullptr});
  }
}

absl::Status OpPlan::Split(const MlaOp& op, TokenPlan& token, ReferenceReader& reader) {
  const auto seen = std::span(seen_).subspan(token.range_begin, token.range_count);
  token.range_begin = static_cast<uint32_t>(ranges_.size());
  met_.clear();
  for (CellRange range : seen) {
    auto next = std::lower_bound(candidates_.begin(), candidates_.end(), range.begin,
                                 [](const Candidate& c, uint32_t cell) { return c.cell < cell; });
    for (; next != candidates_.end() && next->cell < range.end; ++next) {
      if (next->attached == nullptr) {
        auto read = reader.Read(op.Cell(token.stream, next->cell), op.layer);
        if (!read.ok()) {
          return absl::Status(read.status().code(),
                              absl::StrFormat("cell %d of stream %d: %s", next->cell, token.stream,
                                              read.status().message()));
        }
        next->attached = *std::move(read);
      }
      met_.push_back(static_cast<uint32_t>(next - candidates_.begin()));
      if (next->cell > range.begin) ranges_.push_back({range.begin, next->cell});
      range.begin = next->cell + 1;
    }
    if (range.begin < range.end) ranges_.push_back(range);
  }
  token.range_count = static_cast<uint32_t>(ranges_.size()) - token.range_begin;
  return absl::OkStatus();
}

uint32_t OpPlan::ListOf(AttachedList list) {
  const auto known = std::find(lists_.begin(), lists_.end(), list);
  if (known != lists_.end()) return static_cast<uint32_t>(known - lists_.begin());
  lists_.push_back(std::move(list));
  return static_cast<uint32_t>(lists_.size() - 1);
}

}  // namespace ckv::ggml
