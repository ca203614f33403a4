#include "client/tools/ctl/query/trial_corpus.h"

#include <unistd.h>

#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/paged/timing_values.h"
#include "client/publish/chunk_puts.h"
#include "client/tools/ctl/corpus/load_source.h"
#include "client/tools/ctl/corpus/publish_corpus.h"
#include "client/tools/ctl/fleet/orphans.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "store/formats/import.h"

namespace ckv::ctl {
namespace {

// Rows of one chunk, and its index keys, the same for every layer (client/paged/timing_values.h).
struct TrialRows {
  std::vector<uint16_t> values, keys;
};

SourceChunk MakeChunk(const Geometry& geometry, uint32_t token_count, uint32_t seed) {
  std::mt19937 generator(seed);
  auto rows = std::make_shared<TrialRows>();
  rows->values.resize(size_t{token_count} * geometry.row_bytes() / sizeof(uint16_t));
  FillTimingValues(std::as_writable_bytes(std::span(rows->values)), seed, geometry.dtype);
  if (geometry.index) {
    const IndexShape& index = *geometry.index;
    rows->keys.resize(size_t{token_count} * index.key_bytes() / sizeof(uint16_t));
    FillTimingValues(std::as_writable_bytes(std::span(rows->keys)), seed + 1,
                     index.dtype == IndexDtype::kBf16 ? RowDtype::kBf16 : RowDtype::kFp8DsMla);
  }
  // Tokens of this process only, so that no other chunk has this id.
  std::vector<int32_t> tokens(token_count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(generator() & 0x7fffffff);
  SourceChunk chunk;
  chunk.rows = [rows = rows.get(), layers = geometry.layers](uint32_t tensor) {
    return std::as_bytes(std::span(tensor < layers ? rows->values : rows->keys));
  };
  chunk.info = DescribeChunk(geometry, ChunkId(), 0, tokens, {0, token_count}, chunk.rows);
  chunk.owned = std::move(rows);
  return chunk;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrialCorpus>> TrialCorpus::Put(const Ctl& ctl, Fleet& fleet,
                                                              const TrialShape& shape) {
  std::unique_ptr<TrialCorpus> trial(new TrialCorpus(ctl));
  trial->name_ = absl::StrFormat("trial-%d-%d", getpid(), ctl.clock->Now().ns & 0xffffff);
  CKV_ASSIGN_OR_RETURN(trial->holders_, fleet.Holders());
  MemorySource source(shape.geometry);
  std::vector<std::vector<HolderId>> placement;
  const auto add = [&](uint32_t tokens, const Member& holder, std::vector<uint32_t>& ordinals) {
    const auto seed = static_cast<uint32_t>(getpid()) * 1000u + uint32_t(source.chunks().size());
    ordinals.push_back(static_cast<uint32_t>(source.chunks().size()));
    source.Add(MakeChunk(shape.geometry, tokens, seed));
    placement.push_back({holder.id});
  };
  for (const uint32_t tokens : shape.sizes) add(tokens, trial->holders_[0], trial->sizes_);
  const uint64_t chunk_bytes = uint64_t{shape.sizes.back()} * shape.geometry.token_bytes();
  for (uint64_t bytes = 0; bytes < shape.push_out_bytes; bytes += chunk_bytes)
    add(shape.sizes.back(), trial->holders_[0], trial->push_out_);
  if (shape.spread_tokens > 0) {
    for (const Member& holder : trial->holders_) add(shape.spread_tokens, holder, trial->spread_);
  }

  Corpus corpus;
  corpus.name = trial->name_;
  corpus.tenant = fleet.options().tenant;
  corpus.geometry = shape.geometry;
  for (size_t i = 0; i < source.chunks().size(); ++i) {
    const PlannedChunk& chunk = source.chunks()[i];
    corpus.chunks.emplace_back(
        PlacementFacts{chunk.id, chunk.parent, chunk.token_count, chunk.position, placement[i]});
  }
  // Held until the corpus is published: an interrupt drops it after the puts, and not during them.
  absl::MutexLock lock(&trial->drop_mu_);
  for (const ChunkPlacement& chunk : corpus.chunks) *trial->placed_.Add() = ToProto(chunk);
  trial->on_interrupt_.emplace([trial = trial.get()] {
    trial->ctl_.Note(absl::StrFormat("\nckvctl: interrupted; corpus %s is dropped", trial->name_));
    trial->Drop();
  });

  const auto progress = ctl.StartProgress("put", "B", source.row_bytes());
  const auto put = PutChunks(source, placement, trial->holders_, fleet.options().tenant, *ctl.clock,
                             {[&](uint64_t bytes) { progress->Advance(bytes); }, nullptr});
  if (!put.ok()) {
    // Leaves out the hint to run the same command again: what was put is dropped, and the next run
    // puts other chunks.
    const std::string text(put.status().message());
    return absl::Status(
        put.status().code(),
        absl::StrFormat("a trial corpus of %s could not be put: %s",
                        FormatBytes(source.row_bytes()), text.substr(0, text.find('\n'))));
  }
  CKV_RETURN_IF_ERROR(PublishCorpus(fleet, corpus, /*replace=*/false).status());
  return trial;
}

TrialCorpus::~TrialCorpus() { Drop(); }

void TrialCorpus::Drop() {
  absl::MutexLock lock(&drop_mu_);
  if (placed_.empty()) return;
  Fleet fleet(ctl_.fleet, ctl_.clock);  // the command's Fleet belongs to another thread
  std::vector<std::string> warnings;
  absl::Status status = DropCorpus(fleet, name_, warnings).status();
  // Before the corpus is published, its copies belong to no corpus.
  if (absl::IsNotFound(status)) status = DropOrphans(fleet, placed_, warnings).status();
  if (!status.ok()) {
    warnings.push_back(
        absl::StrFormat("corpus %s may be left on the fleet: %s\n  ckvctl corpus drop %s drops it",
                        name_, std::string(status.message()), name_));
  }
  for (const std::string& warning : warnings) ctl_.Note("ckvctl: warning: " + warning);
  placed_.Clear();
}

}  // namespace ckv::ctl
