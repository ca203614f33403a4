// The rows of a context that were chosen by index scores, as candidates at their holders.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/context/context_state.h"
#include "proto/index_query.h"

namespace ckv {

class HolderPeer;  // client/holders/holder_peer.h

// Parts of one list.
class RowLists {
 public:
  // Appends a list.
  void Add(std::span<const uint32_t> rows) {
    rows_.insert(rows_.end(), rows.begin(), rows.end());
    ends_.push_back(rows_.size());
  }
  std::span<const uint32_t> operator[](uint32_t list) const {
    const size_t begin = list == 0 ? 0 : ends_[list - 1];
    return std::span(rows_).subspan(begin, ends_[list] - begin);
  }

 private:
  std::vector<uint32_t> rows_;
  std::vector<size_t> ends_;
};

// The first `count` candidates of a token of a score request (transport/wire_score.h).
struct ChosenCandidates {
  uint64_t number = 0;
  uint16_t token = 0;
  uint16_t count = 0;
};

// The query of a choice, copied: a choice whose candidates were dropped is made again.
struct ChoiceQuery {
  uint32_t layer = 0;
  uint32_t k = 0;
  IndexQueryDtype dtype = IndexQueryDtype::kFp8;
  uint32_t token_count = 0;
  std::vector<std::byte> q;
  std::vector<float> weights;
  std::vector<float> own_scores;

  IndexQueryView View() const { return {dtype, q.data(), weights.data(), token_count}; }
};

// The parts of a choice. A source is a holder, or this host.
struct RowChoiceParts {
  std::shared_ptr<const ContextState> context;
  ChoiceQuery query;
  std::vector<const HolderPeer*> holders;    // [sources], null for this host
  std::vector<uint32_t> source_of_chunk;     // [chunks of the context]
  std::vector<ChosenCandidates> candidates;  // [tokens][sources]
  RowLists local_rows;                       // [tokens] ascending, counted as a selection does
  RowLists own_rows;                         // [tokens] ascending, of the caller's own rows
};

// Immutable except for Keep. Thread-safe.
class RowChoiceState {
 public:
  explicit RowChoiceState(RowChoiceParts parts) : parts_(std::move(parts)) {}
  ~RowChoiceState() { delete rows_.load(); }
  RowChoiceState(const RowChoiceState&) = delete;
  RowChoiceState& operator=(const RowChoiceState&) = delete;

  const ContextState* context() const { return parts_.context.get(); }
  const ChoiceQuery& query() const { return parts_.query; }
  uint32_t token_count() const { return parts_.query.token_count; }
  uint32_t source_count() const { return static_cast<uint32_t>(parts_.holders.size()); }
  uint32_t source_of(uint32_t chunk) const { return parts_.source_of_chunk[chunk]; }
  // The holder of a source; null for this host.
  const HolderPeer* holder(uint32_t source) const { return parts_.holders[source]; }
  bool is_local(uint32_t source) const { return holder(source) == nullptr; }
  const ChosenCandidates& candidates(uint32_t token, uint32_t source) const {
    return parts_.candidates[size_t{token} * source_count() + source];
  }
  std::span<const uint32_t> local_rows(uint32_t token) const { return parts_.local_rows[token]; }
  std::span<const uint32_t> own_rows(uint32_t token) const { return parts_.own_rows[token]; }

  // Keeps the chosen rows of the context, [tokens][k] as of a Selection, once the candidates no
  // longer serve. Later calls change nothing.
  void Keep(std::vector<int32_t> rows) const {
    auto kept = std::make_unique<const std::vector<int32_t>>(std::move(rows));
    const std::vector<int32_t>* none = nullptr;
    if (rows_.compare_exchange_strong(none, kept.get())) (void)kept.release();
  }
  // Returns these rows, or null if the candidates serve. They live as long as this object.
  const int32_t* rows() const {
    const std::vector<int32_t>* const kept = rows_.load();
    return kept == nullptr ? nullptr : kept->data();
  }

 private:
  const RowChoiceParts parts_;
  mutable std::atomic<const std::vector<int32_t>*> rows_{nullptr};
};

}  // namespace ckv
