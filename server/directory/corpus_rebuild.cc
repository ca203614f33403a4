#include "server/directory/corpus_rebuild.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status CorpusRebuild::Add(const HolderId& reporter, const CorpusPart& part) {
  CKV_RETURN_IF_ERROR(ValidateCorpusPart(part));
  const std::vector<ChunkPlacement>& chunks = part.corpus.chunks;
  for (const ChunkPlacement& chunk : chunks) {
    if (std::find(chunk.holders.begin(), chunk.holders.end(), reporter) == chunk.holders.end()) {
      return absl::InvalidArgumentError(absl::StrFormat("corpus part: chunk %s is not placed on %s",
                                                        chunk.id.ShortHex(), reporter.name));
    }
  }
  if (chunk_count_ + chunks.size() > chunk_count_max_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d chunks of corpora that are not whole yet, limit %d", chunk_count_, chunk_count_max_));
  }
  const Key key(part.corpus.tenant, part.corpus.name);
  const auto [place, added] = corpora_[key].try_emplace(part.corpus.version);
  Version& version = place->second;
  if (added) {
    version.geometry = part.corpus.geometry;
    version.chunk_count = part.chunk_count;
  }
  version.conflict |=
      version.geometry != part.corpus.geometry || version.chunk_count != part.chunk_count;
  version.reporters.insert(reporter);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto [known, is_new] = version.chunks.try_emplace(part.ordinals[i], chunks[i]);
    version.conflict |= known->second != chunks[i];
    if (!is_new) continue;
    ++chunk_count_;
    ++counts_[chunks[i].id];
  }
  if (version.IsWhole()) whole_.insert(key);
  return absl::OkStatus();
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
    corpus.chunks.reserve(version.chunks.size());
    for (const auto& [ordinal, chunk] : version.chunks) corpus.chunks.push_back(chunk);
    // Two parts that agree chunk by chunk may still name one chunk at two places.
    if (ValidateCorpus(corpus).ok()) return corpus;
    found->second.rbegin()->second.conflict = true;
  }
  return std::nullopt;
}

void CorpusRebuild::Drop(const Version& version) {
  chunk_count_ -= version.chunks.size();
  for (const auto& [ordinal, chunk] : version.chunks) {
    const auto count = counts_.find(chunk.id);
    if (--count->second == 0) counts_.erase(count);
  }
}

void CorpusRebuild::Forget(const Key& key, uint64_t version) {
  const auto found = corpora_.find(key);
  if (found == corpora_.end()) return;
  Versions& versions = found->second;
  while (!versions.empty() && versions.begin()->first <= version) {
    Drop(versions.begin()->second);
    versions.erase(versions.begin());
  }
  if (versions.empty()) corpora_.erase(found);
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
