// Computes chunks with the reference engine. Plan cuts the documents into runs, each prefilled as
// one sequence, and names all chunks without computing anything. Read then prefills a chunk's run,
// unless the previous chunk was of the same run, and copies the chunk's rows.

#include "client/tools/ctl/corpus/prefill_source.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "attention/worker_pool.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

class PrefillSource final : public ChunkSource {
 public:
  PrefillSource(std::shared_ptr<const Engine> engine, TokenDocuments documents, uint32_t threads,
                OnPrefilled on_prefilled)
      : engine_(std::move(engine)),
        documents_(std::move(documents)),
        pool_(threads),
        on_prefilled_(std::move(on_prefilled)) {
    geometry_ = engine_->geometry();
  }

  absl::Status Plan(const CutOptions& cut);
  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    const auto& [run, range] = places_.at(ordinal);
    return runs_[run].subspan(range.begin, range.end - range.begin);
  }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override;

 private:
  // A sequence reads its engine for as long as it lives, which may be longer than the source.
  struct Prefilled {
    std::shared_ptr<const Engine> engine;
    std::unique_ptr<const Sequence> sequence;
  };
  struct Place {
    uint32_t run = 0;
    TokenRange range;  // a part of the run's tokens
  };

  // `keys` are the run's, sorted.
  absl::Status PlanRun(std::span<const int32_t> tokens, const ExtraKeys& keys,
                       const std::string& origin, const CutOptions& cut, ChunkPlanner& planner);
  absl::StatusOr<std::shared_ptr<const Prefilled>> Prefill(uint32_t run);

  const std::shared_ptr<const Engine> engine_;
  const TokenDocuments documents_;
  WorkerPool pool_;
  const OnPrefilled on_prefilled_;
  std::vector<std::span<const int32_t>> runs_;  // tokens that are prefilled in one go
  std::vector<ExtraKeys> run_keys_;             // one for each run
  std::vector<Place> places_;                   // one for each chunk
  uint32_t last_run_ = 0;
  std::shared_ptr<const Prefilled> last_;  // the prefilled run last_run_
};

absl::Status PrefillSource::PlanRun(std::span<const int32_t> tokens, const ExtraKeys& keys,
                                    const std::string& origin, const CutOptions& cut,
                                    ChunkPlanner& planner) {
  const auto add_run = [this](std::span<const int32_t> run, const ExtraKeys& of_run) {
    runs_.push_back(run);
    run_keys_.push_back(of_run);
  };
  if (tokens.size() > kChunkTokenCountMax && !cut.standalone) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d tokens in one sequence, limit %d\n  --max-tokens takes fewer, --cut document "
        "prefills each document by itself",
        origin, tokens.size(), kChunkTokenCountMax));
  }
  ChunkId parent;
  if (!cut.standalone) add_run(tokens, keys);
  for (const TokenRange range : Cut(tokens, cut)) {
    const auto part = tokens.subspan(range.begin, range.end - range.begin);
    const ExtraKeys part_keys = ExtraKeysOf(keys, range.begin, range.end);
    if (cut.standalone) {
      CKV_RETURN_IF_ERROR(planner.Add(ChunkId(), 0, part, part_keys, origin));
      add_run(part, part_keys);
      places_.push_back({static_cast<uint32_t>(runs_.size() - 1), {0, range.end - range.begin}});
      continue;
    }
    CKV_RETURN_IF_ERROR(planner.Add(parent, range.begin, part, part_keys, origin));
    parent = chunks_.back().id;
    places_.push_back({static_cast<uint32_t>(runs_.size() - 1), range});
  }
  return absl::OkStatus();
}

absl::Status PrefillSource::Plan(const CutOptions& cut) {
  ChunkPlanner planner(geometry_, cut.key, &chunks_);
  if (cut.policy != CutPolicy::kDocument) {
    CKV_ASSIGN_OR_RETURN(const ExtraKeys keys, documents_.KeysOfAll());
    CKV_RETURN_IF_ERROR(
        PlanRun(documents_.tokens, keys, documents_.documents.front().origin, cut, planner));
  } else {
    for (size_t i = 0; i < documents_.documents.size(); ++i) {
      const TokenDocuments::Document& document = documents_.documents[i];
      CKV_RETURN_IF_ERROR(
          PlanRun(documents_.of(i), document.extra_keys, document.origin, cut, planner));
    }
  }
  if (cut.extended != nullptr) {
    // Refused, or there already: both are known without the rows.
    CKV_ASSIGN_OR_RETURN(const std::vector<uint32_t> fresh, NewToCorpus(cut, *this));
    if (fresh.empty()) return absl::OkStatus();
  }
  if (cut.before_prefill) CKV_RETURN_IF_ERROR(cut.before_prefill(*this));
  if (runs_.size() != 1) return absl::OkStatus();
  return Prefill(0).status();
}

absl::StatusOr<std::shared_ptr<const PrefillSource::Prefilled>> PrefillSource::Prefill(
    uint32_t run) {
  if (last_ != nullptr && last_run_ == run) return last_;
  last_ = nullptr;  // before the next one takes as much
  uint32_t reported = 0;
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<const Sequence> sequence,
                       engine_->Prefill(runs_[run], 0, pool_, [&](uint32_t done) {
                         if (on_prefilled_) on_prefilled_(done - reported);
                         reported = done;
                         return absl::OkStatus();
                       }));
  last_ = std::make_shared<const Prefilled>(Prefilled{engine_, std::move(sequence)});
  last_run_ = run;
  return last_;
}

absl::StatusOr<SourceChunk> PrefillSource::Read(uint32_t ordinal) {
  const auto [run, range] = places_.at(ordinal);
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const Prefilled> prefilled, Prefill(run));
  SourceChunk chunk;
  chunk.rows = [sequence = prefilled->sequence.get(), range = range](uint32_t layer) {
    const RowView rows = sequence->rows(layer);
    return std::span(rows.data + size_t{range.begin} * rows.stride_bytes,
                     size_t{range.end - range.begin} * rows.stride_bytes);
  };
  chunk.owned = prefilled;
  chunk.info = DescribeChunk(geometry_, chunks_[ordinal].parent, 0, runs_[run], range, chunk.rows,
                             run_keys_[run]);
  NameAsPlanned(ordinal, chunk.info);
  return chunk;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPrefill(std::shared_ptr<const Engine> engine,
                                                         TokenDocuments documents,
                                                         const CutOptions& cut, uint32_t threads,
                                                         OnPrefilled on_prefilled) {
  auto source = std::make_unique<PrefillSource>(std::move(engine), std::move(documents), threads,
                                                std::move(on_prefilled));
  CKV_RETURN_IF_ERROR(source->Plan(cut));
  return source;
}

}  // namespace ckv::ctl
