// A score request from its check to its reply: Begin checks it and pins its chunks, Run scores
// their keys on the side thread, and Finish keeps the best rows of each token and sends scores.

#include "server/dispatch/score_work.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "server/batch/cold_rows.h"
#include "store/memory/chunk.h"

namespace ckv {
namespace {

void WriteWord(std::span<std::byte> slot, size_t& place, const void* word) {
  std::memcpy(slot.data() + place, word, sizeof(uint32_t));
  place += sizeof(uint32_t);
}

// The chunks of a request are scored once each.
absl::Status CheckNoChunkTwice(std::vector<ChunkRun> runs) {
  std::sort(runs.begin(), runs.end(),
            [](const ChunkRun& a, const ChunkRun& b) { return a.handle < b.handle; });
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[i - 1].handle + runs[i - 1].count <= runs[i].handle) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("handle %d twice: its rows would count twice", runs[i].handle));
  }
  return absl::OkStatus();
}

}  // namespace

ScoreWork::ScoreWork(const ScoreWorkOptions& options, Clock* clock, const ChunkTable* table,
                     const LeaseGate* lease, ServeCounters* counters)
    : options_(options), clock_(clock), table_(table), lease_(lease), counters_(counters) {}

ScoreWork::~ScoreWork() = default;

absl::StatusOr<ScoreWork::Verdict> ScoreWork::Begin(const ReadyRequest& ready) {
  work_ = 0;
  CKV_RETURN_IF_ERROR(
      DecodeScoreRequest(ready.header, ready.frame(), ready.session->geometry, request_));
  ready_ = ready;
  absl::Status status = CheckTurn(ready, *lease_, clock_->Now(), *counters_);
  if (status.ok() && options_.chunk_memory != MemoryKind::kHost) {
    status = absl::UnimplementedError(
        absl::StrFormat("index keys are scored in host memory, this store is in %s memory",
                        MemoryKindName(options_.chunk_memory)));
  }
  if (status.ok()) status = CheckNoChunkTwice(request_.runs);
  if (status.ok()) status = FindKeys();
  if (absl::IsUnavailable(status) && lease_->LiveAt(clock_->Now()) && !ready.refused) {
    Clear();
    return Verdict::kCold;
  }
  if (status.ok()) status = CheckLimits();
  if (status.ok()) return Verdict::kReady;
  PostError(ready, status, /*retry_after_us=*/0, *counters_);
  Clear();
  return Verdict::kAnswered;
}

absl::Status ScoreWork::FindKeys() {
  const IndexShape& shape = *ready_.session->geometry.index;
  row_count_ = 0;
  for (const ChunkRun& run : request_.runs) {
    for (uint32_t i = 0; i < run.count; ++i) CKV_RETURN_IF_ERROR(AddKeys(run.handle + i, shape));
  }
  work_ = row_count_ * shape.heads * shape.dim * request_.token_count;
  return absl::OkStatus();
}

absl::Status ScoreWork::AddKeys(uint32_t handle, const IndexShape& shape) {
  RowView keys = {.data = nullptr, .stride_bytes = shape.key_bytes()};
  absl::StatusOr<ChunkPin> pin = PinHandle(*table_, *ready_.session, handle);
  if (pin.ok()) {
    const Chunk& chunk = pin->chunk();
    keys.data = chunk.tensor(chunk.geometry().index_tensor(ready_.header.layer)).data();
    keys.count = chunk.info().token_count();
    pins_.push_back(*std::move(pin));
  } else if (absl::IsUnavailable(pin.status()) && ready_.cold_rows != nullptr) {
    const ColdRows::Layer* const read =
        ready_.cold_rows->Find(*ready_.session->handles.Lookup({handle}));
    if (read == nullptr) return pin.status();
    keys.data = read->rows;
    keys.count = read->token_count;
  } else {
    return pin.status();
  }
  if (row_count_ + keys.count > std::numeric_limits<uint32_t>::max())
    return absl::InvalidArgumentError("the chunks of a score request have more than 2^32 rows");
  keys_.push_back({keys, static_cast<uint32_t>(row_count_)});
  chunks_.push_back({*ready_.session->handles.Lookup({handle}), keys.count});
  row_count_ += keys.count;
  return absl::OkStatus();
}

absl::Status ScoreWork::CheckLimits() const {
  if (work_ > kScoreWorkMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d tokens over %d index keys are %d multiply-adds, limit %d: score fewer tokens at once",
        request_.token_count, row_count_, work_, kScoreWorkMax));
  }
  const uint64_t kept = std::min<uint64_t>(request_.entry.k, row_count_) * request_.token_count;
  static_assert(kCandidateCountMax * sizeof(ScoredRow) <= kCandidateBytesMax / 4);
  if (kept > kCandidateCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tokens have %d candidates in all, limit %d: score fewer at once",
                        request_.token_count, kept, kCandidateCountMax));
  }
  const uint64_t reply_bytes =
      sizeof(ReplyHeader) + ScoreReplyBytes(request_.token_count, request_.entry.score_count);
  const uint32_t reply_bytes_max = ready_.lane->shape().reply_bytes_max;
  if (reply_bytes <= reply_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d scores of %d tokens are a reply of %d bytes, this lane holds %d",
      request_.entry.score_count, request_.token_count, reply_bytes, reply_bytes_max));
}

void ScoreWork::Run() {
  started_ = clock_->Now();
  if (search_ == nullptr) {
    pool_ = std::make_unique<WorkerPool>(options_.compute_threads);
    search_ = std::make_unique<IndexSearch>(pool_.get());
  }
  const IndexQueryView queries = {.dtype = request_.entry.dtype,
                                  .q = request_.q,
                                  .weights = request_.weights,
                                  .tokens = request_.token_count};
  search_->Run(*ready_.session->geometry.index, queries, keys_, request_.entry.k);
  auto made = std::make_shared<Candidates>(ready_.session->tenant, chunks_);
  for (uint32_t t = 0; t < request_.token_count; ++t) made->Add(search_->best(t));
  made_ = std::move(made);
  elapsed_ = clock_->Now() - started_;
}

void ScoreWork::Finish(uint32_t waiting_count) {
  WriteReply();
  const ReplyHeader reply = {.kind = WireKind::kScore,
                             .request_id = ready_.header.request_id,
                             .epoch = ready_.header.epoch,
                             .body_bytes = static_cast<uint32_t>(
                                 ScoreReplyBytes(request_.token_count, request_.entry.score_count)),
                             .row_count = request_.token_count,
                             .compute_ns = Saturate32(elapsed_.count()),
                             .queue_ns = Saturate32((started_ - ready_.arrived).count()),
                             .queue_depth = waiting_count};
  options_.candidates->Insert(ready_.session->ordinal, request_.entry.candidates, std::move(made_));
  Bump(counters_->score_count);
  Bump(counters_->score_key_count, row_count_ * request_.token_count);
  PostReply(ready_, reply, *counters_);
  Clear();
}

void ScoreWork::WriteReply() {
  const std::span<std::byte> slot = ready_.lane->reply(ready_.slot);
  size_t place = sizeof(ReplyHeader);
  for (uint32_t t = 0; t < request_.token_count; ++t) {
    const std::span<const ScoredRow> best = made_->best(t);
    const auto count = static_cast<uint32_t>(best.size());
    WriteWord(slot, place, &count);
    for (uint32_t i = 0; i < request_.entry.score_count; ++i) {
      const float score = i < count ? best[i].score : 0;
      WriteWord(slot, place, &score);
    }
  }
}

void ScoreWork::Clear() {
  pins_.clear();
  keys_.clear();
  chunks_.clear();
  made_.reset();
  ready_ = {};
}

absl::Status ScoreWork::Answer(const ReadyRequest& ready) {
  CKV_ASSIGN_OR_RETURN(const CandidatesEntry entry,
                       DecodeCandidatesRequest(ready.header, ready.frame()));
  absl::Status status = CheckTurn(ready, *lease_, clock_->Now(), *counters_);
  const Candidates* const candidates =
      options_.candidates->Find(ready.session->tenant, entry.candidates);
  if (status.ok() && candidates == nullptr) status = CandidatesGone(entry.candidates);
  const std::span<std::byte> slot = ready.lane->reply(ready.slot);
  const uint32_t body_bytes = entry.count * sizeof(uint32_t);
  if (status.ok() && (entry.token >= candidates->token_count() ||
                      entry.begin + entry.count > candidates->best(entry.token).size())) {
    status = absl::InvalidArgumentError(
        absl::StrFormat("candidates %x do not have %d rows from %d of token %d", entry.candidates,
                        entry.count, entry.begin, entry.token));
  }
  if (status.ok() && sizeof(ReplyHeader) + body_bytes > slot.size()) {
    status = absl::InvalidArgumentError(absl::StrFormat(
        "%d candidates do not fit this lane's replies of %d bytes", entry.count, slot.size()));
  }
  if (!status.ok()) {
    PostError(ready, status, /*retry_after_us=*/0, *counters_);
    return absl::OkStatus();
  }
  size_t place = sizeof(ReplyHeader);
  for (const ScoredRow& row : candidates->best(entry.token).subspan(entry.begin, entry.count)) {
    const bool score = entry.part == CandidatesPart::kScores;
    WriteWord(slot, place, score ? static_cast<const void*>(&row.score) : &row.row);
  }
  PostReply(ready,
            {.kind = WireKind::kCandidates,
             .request_id = ready.header.request_id,
             .epoch = ready.header.epoch,
             .body_bytes = body_bytes,
             .queue_ns = Saturate32((clock_->Now() - ready.arrived).count())},
            *counters_);
  return absl::OkStatus();
}

}  // namespace ckv
