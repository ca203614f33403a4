// One attempt of a selection: FindSources divides the context's chunks among their holders, this
// host and the caller. AskScores has all of them score. ReadMore asks holders for more scores until
// the best of all are known, and ReadRows for the rows of those.

#include "client/call/row_selector.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_format.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// How many times its even share of the best k a holder returns at once: 512 scores of 2,048 rows
// for 16 holders.
constexpr uint32_t kShareMargin = 4;
constexpr uint32_t kScoresMin = 64;
// How often an attempt scores again, after a holder dropped its candidates for those of others.
constexpr uint32_t kScoreAgainMax = 3;

uint64_t RandomNumber() {
  thread_local std::mt19937_64 numbers((uint64_t{std::random_device()()} << 32) |
                                       std::random_device()());
  return numbers();
}

absl::Status CheckOrder(std::span<const float> best) {
  for (size_t i = 0; i < best.size(); ++i) {
    if (std::isnan(best[i]) || (i > 0 && best[i] > best[i - 1]))
      return absl::DataLossError("score: the scores of a holder do not descend");
  }
  return absl::OkStatus();
}

template <typename T>
void Put(std::span<std::byte> slot, size_t place, std::span<const T> values) {
  if (!values.empty()) std::memcpy(slot.data() + place, values.data(), values.size_bytes());
}

}  // namespace

RowSelector::RowSelector(const LinkOptions* options, LinkTable* links, Exchange* exchange)
    : clock_(options->clock), shape_(options->shape), links_(*links), exchange_(*exchange) {}

RowSelector::~RowSelector() = default;

absl::Status RowSelector::Select(const RowSelection& selection, std::span<int32_t> rows,
                                 SelectRowsReport* report) {
  const uint32_t tokens = selection.call.queries.tokens, k = selection.call.k;
  if (rows.size() != size_t{tokens} * k) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "select: the best %d rows of %d tokens into %d numbers", k, tokens, rows.size()));
  }
  CKV_RETURN_IF_ERROR(Find(selection, Want::kRows, report));
  for (uint32_t t = 0; t < tokens; ++t) WriteChosen(OfToken(t), rows.subspan(size_t{t} * k, k));
  return absl::OkStatus();
}

ChosenCandidates RowSelector::CandidatesOf(uint32_t source, uint32_t token) const {
  if (!sources_[source].is_holder()) return {};
  const size_t request = RequestOf(source, token);
  return {NumberOf(request), static_cast<uint16_t>(token - requests_[request].token_begin),
          static_cast<uint16_t>(found(token)[source].chosen_count)};
}

absl::Status RowSelector::Find(const RowSelection& selection, Want want, SelectRowsReport* report) {
  const Instant begin = clock_->Now();
  report_ = {};
  exchange_.Clear();
  if (begin >= selection.call.deadline)
    return absl::DeadlineExceededError("select: the deadline had passed before anything was sent");
  CKV_RETURN_IF_ERROR(Check(selection));
  absl::Status status = FindCandidates(selection, want);
  for (uint32_t again = 0; absl::IsOutOfRange(status) && again < kScoreAgainMax; ++again)
    status = FindCandidates(selection, want);
  // The holder is overloaded, and another may not be.
  if (absl::IsOutOfRange(status)) return absl::ResourceExhaustedError(status.message());
  CKV_RETURN_IF_ERROR(status);
  report_.holder_count = static_cast<uint32_t>(exchange_.peer_count());
  report_.elapsed = clock_->Now() - begin;
  if (report != nullptr) *report = report_;
  return absl::OkStatus();
}

absl::Status RowSelector::Check(const RowSelection& selection) const {
  const Geometry& geometry = selection.context.geometry();
  const uint32_t tokens = selection.call.queries.tokens;
  if (!geometry.index.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("select: %s has no index keys", geometry.ToString()));
  }
  if (selection.call.layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("select: layer %d of %d", selection.call.layer, geometry.layers));
  }
  if (tokens == 0 || selection.call.k == 0 || selection.call.k > kIndexTopMax ||
      selection.call.queries.q == nullptr || selection.call.queries.weights == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("select: the best %d rows of %d tokens, k must be 1 to %d",
                        selection.call.k, tokens, kIndexTopMax));
  }
  if (selection.call.own_scores.size() % tokens != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("select: %d scores of own rows of %d tokens",
                                                      selection.call.own_scores.size(), tokens));
  }
  const uint64_t all = selection.context.token_count() + selection.call.own_scores.size() / tokens;
  if (all <= uint64_t{std::numeric_limits<int32_t>::max()}) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("select: %d rows, a selection counts less than 2^31", all));
}

// OutOfRange if a holder dropped candidates before they were read.
absl::Status RowSelector::FindCandidates(const RowSelection& selection, Want want) {
  exchange_.Clear();
  CKV_RETURN_IF_ERROR(FindSources(selection));
  CKV_RETURN_IF_ERROR(PlanScores(selection));
  exchange_.Start(selection.call.deadline);
  absl::Status status = AskScores(selection);
  if (status.ok()) status = ReadMore(selection);
  if (status.ok()) status = ReadRows(selection, want);
  if (!status.ok()) exchange_.GiveUp();
  return status;
}

// Chunks are added in the order in which rows are counted, so that each source counts its rows in
// the same order.
absl::Status RowSelector::FindSources(const RowSelection& selection) {
  const ContextState& context = selection.context;
  sources_.clear();
  here_.clear();
  source_of_chunk_.assign(context.chunks().size(), 0);
  links_.BeginAttempt();
  for (const auto& corpus : context.corpora())
    CKV_RETURN_IF_ERROR(links_.AddCorpus(corpus, {Primitive::kRoute}).status());
  links_.Tidy();
  std::vector<uint32_t> order(context.chunks().size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&](uint32_t a, uint32_t b) {
    return context.first_row(a) < context.first_row(b);
  };
  if (!std::is_sorted(order.begin(), order.end(), before))
    std::sort(order.begin(), order.end(), before);
  sources_.emplace_back();  // this host
  LinkTable::ChunkLinks* chunk_links = nullptr;
  uint32_t part = kContextPartCountMax;
  for (const uint32_t chunk : order) {
    if (context.chunks()[chunk].part != part) {
      part = context.chunks()[chunk].part;
      CKV_ASSIGN_OR_RETURN(chunk_links, links_.AddCorpus(context.corpora()[part], {}));
    }
    CKV_RETURN_IF_ERROR(AddChunk(selection, chunk, *chunk_links));
  }
  if (!selection.call.own_scores.empty()) {
    ScoreSource own;
    own.peer_index = ScoreSource::kOwn;
    own.AddChunk(
        static_cast<uint32_t>(selection.call.own_scores.size() / selection.call.queries.tokens),
        static_cast<uint32_t>(context.token_count()));
    sources_.push_back(std::move(own));
  }
  scores_.assign(size_t{selection.call.queries.tokens} * sources_.size(), {});
  return absl::OkStatus();
}

absl::Status RowSelector::AddChunk(const RowSelection& selection, uint32_t chunk,
                                   LinkTable::ChunkLinks& chunk_links) {
  const ContextChunk& of = selection.context.chunks()[chunk];
  const auto first_row = static_cast<uint32_t>(selection.context.first_row(chunk));
  const LocalRows* const local =
      selection.cached == nullptr ? nullptr : (*selection.cached)[chunk].get();
  if (local != nullptr && local->current()) {
    ScoreSource& here = sources_.front();
    const Geometry& geometry = selection.context.geometry();
    here_.push_back({{.data = local->tensor(geometry.index_tensor(selection.call.layer)).data(),
                      .count = of.token_count,
                      .stride_bytes = geometry.index->key_bytes()},
                     static_cast<uint32_t>(here.row_count())});
    here.AddChunk(of.token_count, first_row);
    return absl::OkStatus();
  }
  HolderLink& link = links_.Choose(chunk_links, of.ordinal);
  const size_t peers_before = exchange_.peer_count();
  const uint32_t peer_index = exchange_.Add(link);
  if (exchange_.peer_count() > peers_before) {
    if (absl::Status status = links_.EnsureUp(link, selection.call.deadline); !status.ok())
      return Annotate(status, link.peer().Describe());
    sources_.emplace_back().peer_index = peer_index;
  }
  const auto handle = links_.HandleOf(chunk_links, of.ordinal, selection.call.deadline);
  if (!handle.ok()) return links_.Fail(link, handle.status());
  source_of_chunk_[chunk] = 1 + peer_index;
  ScoreSource& source = sources_[1 + peer_index];
  source.AddChunk(of.token_count, first_row);
  source.AddHandle(*handle);
  return absl::OkStatus();
}

// How many scores of a token each holder returns.
uint32_t RowSelector::ScoresAtOnce(uint32_t k) const {
  if (alone()) return 0;
  const uint32_t parties = PartyCount();
  const uint32_t share = (kShareMargin * k + parties - 1) / parties;
  const auto fits =
      static_cast<uint32_t>((shape_.reply_bytes_max - sizeof(ReplyHeader)) / sizeof(float) - 1);
  return std::min({k, std::max(kScoresMin, share), fits});
}

// Divides the tokens into as few requests a holder as its limits allow.
absl::Status RowSelector::PlanScores(const RowSelection& selection) {
  const IndexShape& shape = *selection.context.geometry().index;
  requests_.clear();
  plans_.assign(sources_.size(), {});
  number_ = RandomNumber() >> 1 | 1;  // not 0, also after the last request
  score_count_ = ScoresAtOnce(selection.call.k);
  for (uint32_t s = 0; s < sources_.size(); ++s) {
    const ScoreSource& source = sources_[s];
    if (!source.is_holder()) continue;
    const auto runs = static_cast<uint32_t>(source.runs.size());
    const auto fits = [&](uint32_t tokens) {
      return LayOutScore(runs, tokens, shape, selection.call.queries.dtype).total_bytes <=
                 shape_.request_bytes_max &&
             sizeof(ReplyHeader) + ScoreReplyBytes(tokens, score_count_) <=
                 shape_.reply_bytes_max &&
             source.row_count() * shape.heads * shape.dim * tokens <= kScoreWorkMax &&
             std::min<uint64_t>(selection.call.k, source.row_count()) * tokens <=
                 kCandidateCountMax;
    };
    uint32_t at_once = std::min(selection.call.queries.tokens, kScoreTokenCountMax);
    while (at_once > 0 && !fits(at_once)) at_once /= 2;
    if (at_once == 0 || source.first_rows.size() > kScoreChunkCountMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "select: %d rows in %d chunks at one holder do not fit a score request of %d bytes",
          source.row_count(), source.context_rows.size(), shape_.request_bytes_max));
    }
    plans_[s] = {requests_.size(), at_once};
    for (uint32_t begin = 0; begin < selection.call.queries.tokens; begin += at_once)
      requests_.push_back({s, begin, std::min(at_once, selection.call.queries.tokens - begin)});
  }
  return absl::OkStatus();
}

// Sends all requests, as many at a time as there are slots, and takes their replies. Calls
// `meanwhile` once the first were sent.
absl::Status RowSelector::RunAll(size_t count, absl::FunctionRef<uint32_t(size_t)> peer_of,
                                 Write write, Take take, absl::FunctionRef<void()> meanwhile) {
  size_t next = 0, taken = 0;
  bool met = false;
  while (true) {
    bool posted = false;
    for (; next < count; ++next) {
      const uint32_t peer_index = peer_of(next);
      RequestLane& lane = exchange_.link(peer_index).lane();
      const std::optional<uint32_t> slot = lane.Acquire();
      if (!slot.has_value()) break;
      const RequestHeader header = write(next, lane.request(*slot));
      report_.bytes_sent += sizeof(header) + header.body_bytes;
      CKV_RETURN_IF_ERROR(
          exchange_.Post(peer_index, *slot, header, static_cast<uint32_t>(next), clock_->Now()));
      posted = true;
    }
    if (!std::exchange(met, true)) meanwhile();
    CKV_ASSIGN_OR_RETURN(const bool came,
                         exchange_.Collect([&](const Exchange::Reply& reply) -> absl::Status {
                           report_.bytes_received += reply.bytes.size();
                           CKV_RETURN_IF_ERROR(take(reply.tag, reply));
                           exchange_.Release(reply.peer_index, reply.slot);
                           ++taken;
                           return absl::OkStatus();
                         }));
    if (taken == count) return absl::OkStatus();
    CKV_RETURN_IF_ERROR(exchange_.EndRound(posted || came));
  }
}

absl::Status RowSelector::AskScores(const RowSelection& selection) {
  const IndexShape& shape = *selection.context.geometry().index;
  const auto write = [&](size_t i, std::span<std::byte> slot) {
    const Scoring& request = requests_[i];
    const ScoreSource& source = sources_[request.source];
    const ScoreEntry entry = {.candidates = NumberOf(i),
                              .k = selection.call.k,
                              .score_count = score_count_,
                              .dtype = selection.call.queries.dtype};
    const auto runs = static_cast<uint32_t>(source.runs.size());
    const ScoreLayout layout = LayOutScore(runs, request.token_count, shape, entry.dtype);
    Put(slot, sizeof(RequestHeader), std::span(&entry, 1));
    Put(slot, layout.runs, std::span<const ChunkRun>(source.runs));
    const size_t token_bytes = selection.call.queries.token_bytes(shape);
    Put(slot, layout.q,
        std::span(selection.call.queries.q + request.token_begin * token_bytes,
                  request.token_count * token_bytes));
    Put(slot, layout.weights,
        std::span(selection.call.queries.weights + size_t{request.token_begin} * shape.heads,
                  size_t{request.token_count} * shape.heads));
    RequestHeader header;
    header.kind = WireKind::kScore;
    header.layer = static_cast<uint16_t>(selection.call.layer);
    header.row_count = request.token_count;
    header.piece_count = runs;
    header.body_bytes = static_cast<uint32_t>(layout.total_bytes - sizeof(header));
    SetTrace(selection.call.trace, header);
    return header;
  };
  const auto take = [&](size_t i, const Exchange::Reply& reply) -> absl::Status {
    ExpectedReply expected;
    expected.request_id = reply.header.request_id;
    expected.kind = WireKind::kScore;
    expected.row_count = requests_[i].token_count;
    expected.body_bytes = ScoreReplyBytes(requests_[i].token_count, score_count_);
    const auto body = reply.bytes.subspan(sizeof(ReplyHeader));
    CKV_RETURN_IF_ERROR(CheckReplyForHint(reply.header, body, expected));
    report_.compute_ns_max = std::max<uint64_t>(report_.compute_ns_max, reply.header.compute_ns);
    return TakeScores(requests_[i], selection.call.k, body);
  };
  return RunAll(
      requests_.size(), [&](size_t i) { return sources_[requests_[i].source].peer_index; }, write,
      take, [&] { ScoreHere(selection); });
}

absl::Status RowSelector::TakeScores(const Scoring& request, uint32_t k,
                                     std::span<const std::byte> body) {
  const uint64_t due = std::min<uint64_t>(k, sources_[request.source].row_count());
  for (uint32_t t = 0; t < request.token_count; ++t) {
    TokenScores& scores = at(request.token_begin + t, request.source);
    const std::byte* const from = body.data() + ScoreReplyBytes(t, score_count_);
    std::memcpy(&scores.candidate_count, from, sizeof(uint32_t));
    if (scores.candidate_count != due) {
      return absl::DataLossError(absl::StrFormat("score: %d candidates among %d rows, due are %d",
                                                 scores.candidate_count,
                                                 sources_[request.source].row_count(), due));
    }
    scores.best.resize(std::min(score_count_, scores.candidate_count));
    if (scores.best.empty()) continue;
    std::memcpy(scores.best.data(), from + sizeof(uint32_t), scores.best.size() * sizeof(float));
    CKV_RETURN_IF_ERROR(CheckOrder(scores.best));
  }
  return absl::OkStatus();
}

// Scores the local keys, and sorts the caller's own scores.
void RowSelector::ScoreHere(const RowSelection& selection) {
  const uint32_t tokens = selection.call.queries.tokens;
  const auto keep = [&](uint32_t token, size_t source, std::span<const ScoredRow> best) {
    TokenScores& scores = at(token, source);
    for (const ScoredRow& row : best) {
      scores.best.push_back(row.score);
      scores.rows.push_back(sources_[source].ContextRow(row.row));
    }
    scores.candidate_count = static_cast<uint32_t>(best.size());
  };
  if (!here_.empty()) {
    if (search_ == nullptr) {
      pool_ = std::make_unique<WorkerPool>(1);
      search_ = std::make_unique<IndexSearch>(pool_.get());
    }
    search_->Run(*selection.context.geometry().index, selection.call.queries, here_,
                 selection.call.k);
    for (uint32_t t = 0; t < tokens; ++t) keep(t, 0, search_->best(t));
  }
  if (selection.call.own_scores.empty()) return;
  const size_t own_count = selection.call.own_scores.size() / tokens;
  for (uint32_t t = 0; t < tokens; ++t) {
    own_.Reset(selection.call.k);
    own_.Add(0, selection.call.own_scores.subspan(t * own_count, own_count));
    std::span<const ScoredRow> best = own_.Finish();
    while (!best.empty() && std::isinf(best.back().score) && best.back().score < 0)
      best = best.first(best.size() - 1);  // rows that the token does not see
    keep(t, sources_.size() - 1, best);
  }
}

absl::Status RowSelector::ReadMore(const RowSelection& selection) {
  while (!alone()) {
    readings_.clear();
    for (uint32_t t = 0; t < selection.call.queries.tokens; ++t) {
      const float kth_best = KthBest(OfToken(t), selection.call.k);
      for (uint32_t s = 0; s < sources_.size(); ++s) {
        const uint32_t more = MissingScores(at(t, s), kth_best);
        const auto known = static_cast<uint32_t>(at(t, s).best.size());
        if (more != 0) AddReading({s, t, known, more, CandidatesPart::kScores});
      }
    }
    if (readings_.empty()) return absl::OkStatus();
    CKV_RETURN_IF_ERROR(Read(selection));
  }
  return absl::OkStatus();
}

absl::Status RowSelector::ReadRows(const RowSelection& selection, Want want) {
  const uint32_t tokens = selection.call.queries.tokens, k = selection.call.k;
  readings_.clear();
  for (uint32_t t = 0; t < tokens; ++t) {
    if (alone()) {
      for (TokenScores& scores : OfToken(t)) scores.above_count = scores.candidate_count;
    } else {
      ChooseCandidates(OfToken(t), k);
    }
    if (want == Want::kCounts && !HasTies(OfToken(t), k)) continue;
    for (uint32_t s = 0; s < sources_.size(); ++s) {
      const TokenScores& scores = at(t, s);
      const uint32_t begin = want == Want::kRows ? 0 : scores.above_count;
      const uint32_t count = scores.above_count + scores.tie_count - begin;
      if (sources_[s].is_holder() && count != 0)
        AddReading({s, t, begin, count, CandidatesPart::kRows});
    }
  }
  if (!readings_.empty()) CKV_RETURN_IF_ERROR(Read(selection));
  for (uint32_t t = 0; t < tokens; ++t) SettleTies(OfToken(t), k);
  return absl::OkStatus();
}

// Adds a reading, cut to what replies hold.
void RowSelector::AddReading(Reading reading) {
  const uint32_t fits = (shape_.reply_bytes_max - sizeof(ReplyHeader)) / sizeof(uint32_t);
  for (uint32_t left = reading.count; left != 0; left -= reading.count) {
    reading.count = std::min(left, fits);
    readings_.push_back(reading);
    reading.begin += reading.count;
  }
}

absl::Status RowSelector::Read(const RowSelection& selection) {
  const auto write = [&](size_t i, std::span<std::byte> slot) {
    const Reading& reading = readings_[i];
    const size_t request = RequestOf(reading.source, reading.token);
    const CandidatesEntry entry = {.candidates = NumberOf(request),
                                   .token = reading.token - requests_[request].token_begin,
                                   .begin = reading.begin,
                                   .count = reading.count,
                                   .part = reading.part};
    Put(slot, sizeof(RequestHeader), std::span(&entry, 1));
    RequestHeader header;
    header.kind = WireKind::kCandidates;
    header.body_bytes = sizeof(entry);
    SetTrace(selection.call.trace, header);
    return header;
  };
  const auto take = [&](size_t i, const Exchange::Reply& reply) -> absl::Status {
    const Reading& reading = readings_[i];
    ExpectedReply expected;
    expected.request_id = reply.header.request_id;
    expected.kind = WireKind::kCandidates;
    expected.body_bytes = reading.count * sizeof(uint32_t);
    const auto body = reply.bytes.subspan(sizeof(ReplyHeader));
    CKV_RETURN_IF_ERROR(CheckReplyForHint(reply.header, body, expected));
    return reading.part == CandidatesPart::kScores ? TakeMore(reading, body)
                                                   : TakeRows(reading, body);
  };
  return RunAll(
      readings_.size(), [&](size_t i) { return sources_[readings_[i].source].peer_index; }, write,
      take, [] {});
}

// Replies of one holder arrive in any order.
absl::Status RowSelector::TakeMore(const Reading& reading, std::span<const std::byte> body) {
  std::vector<float>& best = at(reading.token, reading.source).best;
  best.resize(std::max<size_t>(best.size(), reading.begin + reading.count));
  std::memcpy(best.data() + reading.begin, body.data(), body.size());
  return CheckOrder(std::span(best).first(reading.begin + reading.count).last(reading.count));
}

absl::Status RowSelector::TakeRows(const Reading& reading, std::span<const std::byte> body) {
  const ScoreSource& source = sources_[reading.source];
  std::vector<uint32_t>& rows = at(reading.token, reading.source).rows;
  rows.resize(std::max<size_t>(rows.size(), reading.begin + reading.count));
  for (uint32_t i = 0; i < reading.count; ++i) {
    uint32_t row;
    std::memcpy(&row, body.data() + i * sizeof(row), sizeof(row));
    if (row >= source.row_count()) {
      return absl::DataLossError(
          absl::StrFormat("candidates: row %d of %d", row, source.row_count()));
    }
    rows[reading.begin + i] = source.ContextRow(row);
  }
  return absl::OkStatus();
}

}  // namespace ckv
