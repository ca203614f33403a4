// The order of work: Add checks a part and the room for it, and merges its chunks into the version
// that it belongs to. If the version is whole then, its key is noted in `whole_`. TakeWhole reads
// these keys, and checks the version once more: a later part may have added a conflict or a higher
// version. The owner publishes the corpus, and Forget removes what was reported of it.

#include "server/directory/tables/corpus_rebuild.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

void CorpusRebuild::Clear() {
  chunk_count_ = 0;
  corpora_.clear();
  counts_.clear();
  whole_.clear();
}

absl::Status CorpusRebuild::Add(const HolderId& reporter, const CorpusPart& part) {
  CKV_RETURN_IF_ERROR(ValidateCorpusPart(part));
  const std::vector<ChunkPlacement>& chunks = part.corpus.chunks;
  for (const ChunkPlacement& chunk : chunks) {
    if (std::find(chunk.holders().begin(), chunk.holders().end(), reporter) ==
        chunk.holders().end()) {
      return absl::InvalidArgumentError(absl::StrFormat("corpus part: chunk %s is not placed on %s",
                                                        chunk.id.ShortHex(), reporter.name));
    }
  }
  const Key key(part.corpus.tenant, part.corpus.name);
  CKV_RETURN_IF_ERROR(CheckRoom(key, part));
  const auto [place, added] = corpora_[key].try_emplace(part.corpus.version);
  Version& version = place->second;
  if (added) {
    version.geometry = part.corpus.geometry;
    version.chunk_count = part.chunk_count;
    version.replica_count = part.corpus.replica_count;
    version.policy = part.corpus.policy;
  }
  if (version.geometry != part.corpus.geometry) NoteConflict(reporter, "the geometry", version);
  if (version.chunk_count != part.chunk_count)
    NoteConflict(reporter, "the number of chunks", version);
  if (version.replica_count != part.corpus.replica_count)
    NoteConflict(reporter, "the wanted copies", version);
  if (version.policy != part.corpus.policy) NoteConflict(reporter, "the policy", version);
  version.reporters.insert(reporter);
  version.folder_ids.insert(part.folder_id);
  for (size_t i = 0; i < chunks.size(); ++i)
    AddChunk(reporter, part.ordinals[i], chunks[i], version);
  if (version.IsWhole()) whole_.insert(key);
  return absl::OkStatus();
}

absl::Status CorpusRebuild::CheckRoom(const Key& key, const CorpusPart& part) const {
  if (chunk_count_ + part.corpus.chunks.size() > chunk_count_max_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d chunks of corpora that are not whole yet, limit %d", chunk_count_, chunk_count_max_));
  }
  const auto found = corpora_.find(key);
  if (found == corpora_.end() && corpora_.size() >= corpus_count_max_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d corpora that are not whole yet, limit reached", corpora_.size()));
  }
  if (found != corpora_.end() && found->second.size() >= kVersionCountMax &&
      !found->second.contains(part.corpus.version)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "corpus \"%s\": %d versions are reported, limit reached", key.second, kVersionCountMax));
  }
  return absl::OkStatus();
}

// Both facts stay until somebody decides: the chunk of either may be the one that counts.
void CorpusRebuild::AddChunk(const HolderId& reporter, uint32_t ordinal,
                             const ChunkPlacement& chunk, Version& version) {
  const auto [known, is_new] = version.chunks.try_emplace(ordinal, chunk);
  if (is_new) return Count(chunk, /*in=*/true);
  if (known->second == chunk) return;
  NoteConflict(reporter, absl::StrFormat("chunk %d", ordinal), version);
  const auto [begin, end] = version.others.equal_range(ordinal);
  const bool is_kept =
      std::any_of(begin, end, [&](const auto& other) { return other.second == chunk; });
  if (is_kept) return;
  version.others.emplace(ordinal, chunk);
  Count(chunk, /*in=*/true);
}

void CorpusRebuild::NoteConflict(const HolderId& reporter, std::string_view what,
                                 Version& version) {
  if (!std::exchange(version.conflict, true)) {
    version.why =
        absl::StrFormat("holder %s contradicts an earlier report about %s", reporter.name, what);
  }
}

void CorpusRebuild::Count(const ChunkPlacement& chunk, bool in) {
  if (in) {
    ++chunk_count_;
    ++counts_[chunk.id];
    return;
  }
  --chunk_count_;
  const auto count = counts_.find(chunk.id);
  if (--count->second == 0) counts_.erase(count);
}

std::optional<Corpus> CorpusRebuild::TakeWhole() {
  while (!whole_.empty()) {
    const Key key = *whole_.begin();
    whole_.erase(whole_.begin());
    const auto found = corpora_.find(key);
    if (found == corpora_.end()) continue;
    const auto& [number, version] = *found->second.rbegin();
    if (!version.IsWhole()) continue;
    Corpus corpus;
    corpus.tenant = key.first;
    corpus.name = key.second;
    corpus.geometry = version.geometry;
    corpus.version = number;
    corpus.replica_count = version.replica_count;
    corpus.policy = version.policy;
    corpus.chunks.reserve(version.chunks.size());
    for (const auto& [ordinal, chunk] : version.chunks) corpus.chunks.push_back(chunk);
    // Two parts that agree chunk by chunk may still name one chunk at two places.
    if (ValidateCorpus(corpus).ok()) return corpus;
    found->second.rbegin()->second.conflict = true;
    found->second.rbegin()->second.why = "two of its chunks are the same";
  }
  return std::nullopt;
}

void CorpusRebuild::Drop(const Version& version) {
  for (const auto& [ordinal, chunk] : version.chunks) Count(chunk, /*in=*/false);
  for (const auto& [ordinal, chunk] : version.others) Count(chunk, /*in=*/false);
}

void CorpusRebuild::Remove(const Key& key, uint64_t version, uint64_t folder_id) {
  const auto found = corpora_.find(key);
  if (found == corpora_.end()) return;
  Versions& versions = found->second;
  for (auto it = versions.begin(); it != versions.end() && it->first <= version;) {
    const bool forgets =
        folder_id == 0 || it->first == version || it->second.folder_ids.contains(folder_id);
    if (forgets) Drop(it->second);
    it = forgets ? versions.erase(it) : std::next(it);
  }
  if (versions.empty()) corpora_.erase(found);
}

void CorpusRebuild::NoteRefusal(const Key& key, std::string why) {
  const auto found = corpora_.find(key);
  if (found != corpora_.end()) found->second.rbegin()->second.why = std::move(why);
}

bool CorpusRebuild::IsReported(const Key& key, uint64_t folder_id) const {
  const auto found = corpora_.find(key);
  return found != corpora_.end() && found->second.rbegin()->second.folder_ids.contains(folder_id);
}

uint64_t CorpusRebuild::HighestOf(const Key& key, uint64_t folder_id) const {
  const auto found = corpora_.find(key);
  if (found == corpora_.end()) return 0;
  for (auto it = found->second.rbegin(); it != found->second.rend(); ++it) {
    if (folder_id == 0 || it->second.folder_ids.contains(folder_id)) return it->first;
  }
  return 0;
}

UnprovenCorpus CorpusRebuild::Describe(const Key& key, const Versions& versions) {
  const auto& [number, version] = *versions.rbegin();
  UnprovenCorpus unproven;
  unproven.tenant = key.first;
  unproven.name = key.second;
  unproven.version = number;
  unproven.chunk_count = version.chunk_count;
  unproven.missing_count = version.chunk_count - static_cast<uint32_t>(std::min<size_t>(
                                                     version.chunks.size(), version.chunk_count));
  unproven.conflict = version.conflict;
  unproven.why = version.why;
  unproven.version_count = static_cast<uint32_t>(versions.size());
  unproven.reporters.assign(version.reporters.begin(), version.reporters.end());
  return unproven;
}

std::optional<UnprovenCorpus> CorpusRebuild::Find(const Key& key) const {
  const auto found = corpora_.find(key);
  if (found == corpora_.end()) return std::nullopt;
  return Describe(key, found->second);
}

std::vector<UnprovenCorpus> CorpusRebuild::List(size_t count_max) const {
  std::vector<UnprovenCorpus> unproven;
  for (const auto& [key, versions] : corpora_) {
    if (unproven.size() == count_max) break;
    unproven.push_back(Describe(key, versions));
  }
  return unproven;
}

uint32_t CorpusRebuild::CountOf(const ChunkId& id) const {
  const auto found = counts_.find(id);
  return found == counts_.end() ? 0 : found->second;
}

}  // namespace ckv
