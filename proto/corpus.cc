// In this order: names, with those of kept versions; the checks of policies, chunks and corpora;
// how far apart members fail; and the chunks of a call.

#include "proto/corpus.h"

#include <charconv>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

absl::Status ValidateChunk(const ChunkPlacement& chunk, size_t ordinal) {
  const auto error = [ordinal](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrFormat("corpus: chunk %d: %s", ordinal, what));
  };
  if (chunk.id.IsZero()) return error("the zero id names no chunk");
  if (chunk.token_count > kChunkTokenCountMax) return error("too many tokens");
  if (chunk.position > kPositionMax) return error("position beyond 2^40");
  if (chunk.holders().empty()) return error("no holder");
  if (chunk.holders().size() + chunk.leased().size() > kReplicaCountMax)
    return error("too many holders");
  absl::flat_hash_set<HolderId> seen;
  for (const std::vector<HolderId>* list : {&chunk.holders(), &chunk.leased()}) {
    for (const HolderId& holder : *list) {
      if (holder.name.empty()) return error("a holder without a name");
      CKV_RETURN_IF_ERROR(ValidateName("corpus: holder", holder.name));
      if (!seen.insert(holder).second) return error("a holder twice");
    }
  }
  return absl::OkStatus();
}

}  // namespace

ChunkPlacement::ChunkPlacement(const PlacementFacts& facts)
    : id(facts.id), position(facts.position), token_count(facts.token_count) {
  set_holders(facts.holders);
  set_leased(facts.leased);
  set_parent(facts.parent);
  set_token_hash(facts.token_hash);
}

void ChunkPlacement::set_holders(std::vector<HolderId> holders) {
  if (holders != this->holders()) mutable_holders() = std::move(holders);
}

void ChunkPlacement::set_leased(std::vector<HolderId> leased) {
  if (leased != this->leased()) mutable_leased() = std::move(leased);
}

void ChunkPlacement::set_parent(const ChunkId& parent) {
  if (parent != facts_->parent) facts_.Change().parent = parent;
}

void ChunkPlacement::set_token_hash(const TokenHash& hash) {
  if (hash != facts_->token_hash) facts_.Change().token_hash = hash;
}

void ChunkPlacement::ClearLineage() {
  set_parent({});
  set_token_hash({});
}

bool MemberSharing::Less::operator()(const Members& a, const Members& b) const {
  return std::tie(a->holders, a->leased) < std::tie(b->holders, b->leased);
}

void MemberSharing::Add(ChunkPlacement& chunk) {
  if (last_ == known_.end() || last_->first != chunk.facts_->members) {
    if (known_.size() >= kListCountMax) known_.clear();
    bool is_new = false;
    std::tie(last_, is_new) = known_.try_emplace(chunk.facts_->members);
    if (is_new) last_->second.Change().members = last_->first;
  }
  if (chunk.parent().IsZero() && chunk.token_hash() == TokenHash()) {
    chunk.facts_ = last_->second;
  } else if (!chunk.facts_->members.SharesWith(last_->first)) {
    chunk.facts_.Change().members = last_->first;
  }
}

absl::Status ValidateNumbers(const PlacementFacts& facts) {
  if (facts.token_count > kChunkTokenCountMax)
    return absl::InvalidArgumentError(
        absl::StrFormat("chunk: %d tokens, limit %d", facts.token_count, kChunkTokenCountMax));
  if (facts.position > kPositionMax)
    return absl::InvalidArgumentError(
        absl::StrFormat("chunk: position %d is beyond 2^40", facts.position));
  return absl::OkStatus();
}

absl::Status ValidateName(std::string_view field, std::string_view name) {
  if (name.size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d characters, limit %d", field, name.size(), kCorpusNameBytesMax));
  }
  for (const char c : name) {
    if (!IsNameCharacter(c)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: only letters, digits, '-', '_' and '.' are allowed", field));
    }
  }
  return absl::OkStatus();
}

uint64_t Corpus::token_count() const {
  uint64_t count = 0;
  for (const ChunkPlacement& chunk : chunks) count += chunk.token_count;
  return count;
}

uint64_t Corpus::row_bytes() const { return token_count() * geometry.token_bytes(); }

std::string VersionNameOf(std::string_view name, uint64_t version) {
  return absl::StrFormat("%s@%d", name, version);
}

std::optional<VersionName> ParseVersionName(std::string_view name) {
  const size_t at = name.find('@');
  if (at == 0 || at == std::string_view::npos) return std::nullopt;
  const std::string_view digits = name.substr(at + 1);
  VersionName parsed = {.name = name.substr(0, at)};
  const char* const end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, parsed.version);
  // One name a version: no leading zeros.
  if (error != std::errc() || last != end || digits.front() == '0') return std::nullopt;
  return parsed;
}

absl::Status ValidateCorpusName(std::string_view field, std::string_view name) {
  if (name.find('@') == std::string_view::npos) return ValidateName(field, name);
  if (name.size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d characters, limit %d", field, name.size(), kCorpusNameBytesMax));
  }
  const std::optional<VersionName> parsed = ParseVersionName(name);
  if (parsed) return ValidateName(field, parsed->name);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: '@' is allowed only before the number of an earlier version", field));
}

absl::Status ValidatePolicy(const CorpusPolicy& policy) {
  if (policy.ttl_ms.value_or(0) > kTtlMsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("corpus: policy: ttl of %d ms, limit %d", *policy.ttl_ms, kTtlMsMax));
  }
  if (policy.kept_version_count.value_or(0) > kKeptVersionCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("corpus: policy: %d kept versions, limit %d",
                                                      *policy.kept_version_count,
                                                      kKeptVersionCountMax));
  }
  return absl::OkStatus();
}

absl::Status CheckQuota(std::string_view corpus, uint64_t row_bytes, uint64_t quota) {
  if (quota == 0 || row_bytes <= quota) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "corpus \"%s\": %d bytes of rows, and its quota is %d: publish less, or raise the quota "
      "(ckvctl corpus set %s --quota)",
      corpus, row_bytes, quota, corpus));
}

absl::Status ValidateCorpus(const Corpus& corpus) {
  if (corpus.name.empty()) return absl::InvalidArgumentError("corpus: no name");
  CKV_RETURN_IF_ERROR(ValidateCorpusName("corpus: name", corpus.name));
  CKV_RETURN_IF_ERROR(ValidatePolicy(corpus.policy));
  CKV_RETURN_IF_ERROR(ValidateName("corpus: tenant", corpus.tenant));
  CKV_RETURN_IF_ERROR(ValidateGeometry(corpus.geometry));
  if (corpus.chunks.size() > kCorpusChunkCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("corpus: %d chunks, limit %d", corpus.chunks.size(), kCorpusChunkCountMax));
  }
  if (corpus.replica_count > kReplicaCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("corpus: %d copies of a chunk, limit %d",
                                                      corpus.replica_count, kReplicaCountMax));
  }
  absl::flat_hash_set<ChunkId> seen;
  seen.reserve(corpus.chunks.size());
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    CKV_RETURN_IF_ERROR(ValidateChunk(corpus.chunks[i], i));
    if (!seen.insert(corpus.chunks[i].id).second) {
      return absl::InvalidArgumentError(absl::StrFormat("corpus: chunk %d: %s is in it already", i,
                                                        corpus.chunks[i].id.ShortHex()));
    }
  }
  return absl::OkStatus();
}

uint32_t SeparationOf(const FailureDomain& a, const FailureDomain& b) {
  if (a.zone != b.zone) return 3;
  if (a.rack != b.rack) return 2;
  return a.host != b.host ? 1 : 0;
}

absl::StatusOr<std::vector<uint32_t>> ChunksOrAll(const Corpus& corpus,
                                                  std::vector<uint32_t> ordinals) {
  const size_t count = corpus.chunks.size();
  if (count == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("corpus '%s' has no chunks", corpus.name));
  }
  if (ordinals.empty()) {
    ordinals.resize(count);
    std::iota(ordinals.begin(), ordinals.end(), 0u);
    return ordinals;
  }
  std::vector<bool> named(count);
  for (const uint32_t chunk : ordinals) {
    if (chunk >= count) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "chunk %d of corpus '%s', which has 0 to %d", chunk, corpus.name, count - 1));
    }
    if (named[chunk]) {
      return absl::InvalidArgumentError(absl::StrFormat("chunk %d is named twice", chunk));
    }
    named[chunk] = true;
  }
  return ordinals;
}

}  // namespace ckv
