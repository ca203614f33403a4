#include "client/call/row_chooser.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/base/status.h"

namespace ckv {
namespace {

ChoiceQuery CopyOf(const RowSelection& selection) {
  const IndexQueryView& queries = selection.call.queries;
  const IndexShape& shape = *selection.context.geometry().index;
  ChoiceQuery query = {.layer = selection.call.layer,
                       .k = selection.call.k,
                       .dtype = queries.dtype,
                       .token_count = queries.tokens,
                       .q = {},
                       .weights = {},
                       .own_scores = {}};
  query.q.assign(queries.q, queries.q + queries.tokens * queries.token_bytes(shape));
  query.weights.assign(queries.weights, queries.weights + size_t{queries.tokens} * shape.heads);
  query.own_scores.assign(selection.call.own_scores.begin(), selection.call.own_scores.end());
  return query;
}

// Returns the chosen rows of a source, ascending, counted from row `begin` of the context.
std::vector<uint32_t> ChosenRowsOf(const TokenScores& scores, uint32_t begin) {
  std::vector<uint32_t> rows(scores.rows.begin(), scores.rows.begin() + scores.chosen_count);
  for (uint32_t& row : rows) row -= begin;
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RowChoiceState>> RowChooser::Choose(
    const RowSelection& selection, std::shared_ptr<const ContextState> context,
    SelectRowsReport* report) {
  CKV_RETURN_IF_ERROR(selector_.Find(selection, RowSelector::Want::kCounts, report));
  RowChoiceParts parts;
  parts.query = CopyOf(selection);
  parts.context = std::move(context);
  parts.source_of_chunk.assign(selector_.source_of_chunk().begin(),
                               selector_.source_of_chunk().end());
  const std::span<const ScoreSource> sources = selector_.sources();
  const bool has_own = sources.back().peer_index == ScoreSource::kOwn;
  const size_t own = sources.size() - (has_own ? 1 : 0);
  for (const ScoreSource& source : sources.first(own))
    parts.holders.push_back(source.is_holder() ? &selector_.holder(source) : nullptr);
  const auto own_begin = static_cast<uint32_t>(selection.context.token_count());
  for (uint32_t t = 0; t < selection.call.queries.tokens; ++t) {
    const std::span<const TokenScores> found = selector_.found(t);
    for (uint32_t s = 0; s < own; ++s) parts.candidates.push_back(selector_.CandidatesOf(s, t));
    parts.local_rows.Add(ChosenRowsOf(found.front(), 0));
    parts.own_rows.Add(has_own ? ChosenRowsOf(found.back(), own_begin) : std::vector<uint32_t>());
  }
  return std::make_shared<const RowChoiceState>(std::move(parts));
}

absl::Status RowChooser::FindAgain(const RouteCall& call, LayerCallSegments& segments) {
  for (const RouteSegment& segment : call.segments) {
    if (segment.choice == nullptr || segment.choice->rows() != nullptr) continue;
    const ChoiceQuery& query = segment.choice->query();
    const SelectRowsCall select = {.context = nullptr,
                                   .layer = query.layer,
                                   .queries = query.View(),
                                   .k = query.k,
                                   .own_scores = query.own_scores,
                                   .trace = call.trace,
                                   .deadline = call.deadline};
    std::vector<int32_t> rows(size_t{query.token_count} * query.k);
    CKV_RETURN_IF_ERROR(
        selector_.Select({select, *segment.context, segment.cached}, rows, nullptr));
    for (int32_t& row : rows) {
      if (row >= 0 && uint64_t(row) >= segment.context->token_count()) row = -1;  // an own row
    }
    segment.choice->Keep(std::move(rows));
  }
  segments.UseKeptRows();
  return absl::OkStatus();
}

}  // namespace ckv
