// Selects the rows of a context that have the best index scores for a query.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attention/score/index_scores.h"
#include "attention/score/top_rows.h"
#include "attention/worker_pool.h"
#include "client/call/exchange.h"
#include "client/call/score_source.h"
#include "client/calls.h"
#include "client/context/context_state.h"
#include "client/context/row_choice_state.h"
#include "client/holders/link_table.h"
#include "proto/base/clock.h"
#include "transport/wire_score.h"

namespace ckv {

// A call over its resolved context. All of it must outlive the attempt.
struct RowSelection {
  const SelectRowsCall& call;
  const ContextState& context;
  const LocalRowTable* cached = nullptr;  // as in RouteSegment
};

// Part of a call context. Belongs to one thread at a time. Keeps its memory between calls.
//
//   1  Each holder scores its keys, and returns the best scores. This host scores its own.
//   2  If a holder returned fewer than may belong to the best of all, it is asked for more.
//   3  The rows of the candidates that belong to the best of all are read, or those of equal
//   scores.
class RowSelector {
 public:
  RowSelector(const LinkOptions* options, LinkTable* links, Exchange* exchange);
  ~RowSelector();

  // One attempt of Requester::SelectRows. After an error nothing is written to `rows`. `report` may
  // be null.
  absl::Status Select(const RowSelection& selection, std::span<int32_t> rows,
                      SelectRowsReport* report);

  // The rows of the chosen candidates, or their counts alone.
  enum class Want : uint8_t { kRows, kCounts };
  // Finds how many candidates of each source are chosen, for each token. The functions below return
  // the result, until the next call.
  absl::Status Find(const RowSelection& selection, Want want, SelectRowsReport* report);
  // This host, the holders, and the caller's own rows if there are any.
  std::span<const ScoreSource> sources() const { return sources_; }
  // The result for one token, by source.
  std::span<const TokenScores> found(uint32_t token) const {
    return std::span(scores_).subspan(token * sources_.size(), sources_.size());
  }
  // The source of each chunk of the context.
  std::span<const uint32_t> source_of_chunk() const { return source_of_chunk_; }
  // The chosen candidates of a source that is a holder; none of others.
  ChosenCandidates CandidatesOf(uint32_t source, uint32_t token) const;
  const HolderPeer& holder(const ScoreSource& source) const {
    return exchange_.link(source.peer_index).peer();
  }

 private:
  // A request for scores of some of the tokens.
  struct Scoring {
    uint32_t source = 0;
    uint32_t token_begin = 0, token_count = 0;
  };
  // The requests for scores of one holder, one after another.
  struct SourcePlan {
    size_t first_request = 0;
    uint32_t tokens_at_once = 0;
  };
  // A request for candidates.
  struct Reading {
    uint32_t source = 0;
    uint32_t token = 0;
    uint32_t begin = 0, count = 0;
    CandidatesPart part = CandidatesPart::kScores;
  };
  using Write = absl::FunctionRef<RequestHeader(size_t request, std::span<std::byte> slot)>;
  using Take = absl::FunctionRef<absl::Status(size_t request, const Exchange::Reply& reply)>;

  absl::Status Check(const RowSelection& selection) const;
  absl::Status FindCandidates(const RowSelection& selection, Want want);
  absl::Status FindSources(const RowSelection& selection);
  absl::Status AddChunk(const RowSelection& selection, uint32_t chunk,
                        LinkTable::ChunkLinks& chunk_links);
  uint32_t ScoresAtOnce(uint32_t k) const;
  absl::Status PlanScores(const RowSelection& selection);
  absl::Status AskScores(const RowSelection& selection);
  absl::Status TakeScores(const Scoring& request, uint32_t k, std::span<const std::byte> body);
  void ScoreHere(const RowSelection& selection);
  absl::Status ReadMore(const RowSelection& selection);
  absl::Status ReadRows(const RowSelection& selection, Want want);
  void AddReading(Reading reading);
  absl::Status Read(const RowSelection& selection);
  absl::Status TakeMore(const Reading& reading, std::span<const std::byte> body);
  absl::Status TakeRows(const Reading& reading, std::span<const std::byte> body);
  absl::Status RunAll(size_t count, absl::FunctionRef<uint32_t(size_t)> peer_of, Write write,
                      Take take, absl::FunctionRef<void()> meanwhile);
  // Those who have rows.
  uint32_t PartyCount() const {
    return static_cast<uint32_t>(sources_.size() - (here_.empty() ? 1 : 0));
  }
  // Whether one party has all rows. Then its candidates are the selection, whatever their scores.
  bool alone() const { return PartyCount() < 2; }
  // The request that scored a token at a source.
  size_t RequestOf(uint32_t source, uint32_t token) const {
    return plans_[source].first_request + token / plans_[source].tokens_at_once;
  }
  // The number of the candidates of a request.
  uint64_t NumberOf(size_t request) const { return number_ + request; }
  TokenScores& at(uint32_t token, size_t source) {
    return scores_[token * sources_.size() + source];
  }
  std::span<TokenScores> OfToken(uint32_t token) {
    return std::span(scores_).subspan(token * sources_.size(), sources_.size());
  }

  Clock* const clock_;
  const LaneShape shape_;
  LinkTable& links_;
  Exchange& exchange_;
  std::unique_ptr<WorkerPool> pool_;  // made by the first call with local keys
  std::unique_ptr<IndexSearch> search_;

  // The call in progress.
  // This host, the holders by peer index, and the caller's own rows if there are any.
  std::vector<ScoreSource> sources_;
  std::vector<uint32_t> source_of_chunk_;  // [chunks of the context]
  std::vector<IndexKeyRun> here_;          // local keys, as rows of their source
  std::vector<TokenScores> scores_;        // [tokens][sources]
  std::vector<Scoring> requests_;
  std::vector<SourcePlan> plans_;  // [sources]
  std::vector<Reading> readings_;
  TopRows own_;
  uint64_t number_ = 0;  // the candidates of request i have the number number_ + i
  uint32_t score_count_ = 0;
  SelectRowsReport report_;
};

}  // namespace ckv
