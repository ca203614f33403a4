// Refuses a text whose tokens a corpus has in other chunks. CheckNoTextTwice goes over each new
// text. Overlap finds the chunks that could begin it, by token hash; chunks cut elsewhere are
// compared by their tokens, which QueryHolders reads from a holder. Only texts from position 0 on
// are checked.

#include "client/publish/text_overlap.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "client/publish/chunk_copy.h"
#include "client/publish/holder_calls.h"
#include "proto/base/status.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"

namespace ckv {
namespace {

// The tokens of chunk `first` of the source and of those that follow it.
std::vector<int32_t> TextFrom(const ChunkSource& source, uint32_t first) {
  const std::span<const PlannedChunk> chunks = source.chunks();
  std::vector<int32_t> text;
  for (uint32_t i = first; i < chunks.size(); ++i) {
    if (i > first && chunks[i].parent != chunks[i - 1].id) break;
    const std::span<const int32_t> tokens = source.TokensOf(i);
    text.insert(text.end(), tokens.begin(), tokens.end());
  }
  return text;
}

// Their extra keys, sorted, counted from the text's first token.
ExtraKeys KeysFrom(const ChunkSource& source, uint32_t first) {
  const std::span<const PlannedChunk> chunks = source.chunks();
  ExtraKeys keys;
  int64_t begin = 0;
  for (uint32_t i = first; i < chunks.size(); ++i) {
    if (i > first && chunks[i].parent != chunks[i - 1].id) break;
    for (ExtraKey key : chunks[i].extra_keys) {
      if (key.token_count != 0) key.begin += begin;
      keys.push_back(std::move(key));
    }
    begin += chunks[i].token_count;
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());  // those of several chunks
  return keys;
}

// One text that is put, against the chunks of the corpus.
class Overlap {
 public:
  // `followed` are the chunks of the corpus that others follow.
  Overlap(const Corpus& corpus, const absl::flat_hash_set<ChunkId>& followed,
          const ChunkSource& source, uint32_t first, const TenantKey& key, const ReadTokens& query)
      : fingerprint_(ModelFingerprint(corpus.geometry)),
        position_(source.chunks()[first].position),
        text_(TextFrom(source, first)),
        keys_(KeysFrom(source, first)),
        head_(TokenHashOf(std::span(text_).first(std::min(text_.size(), kHeadTokens)), key,
                          ExtraKeysOf(keys_, 0, std::min(text_.size(), kHeadTokens)))
                  .head),
        followed_(followed),
        key_(key),
        query_(query) {}

  uint64_t position() const { return position_; }
  size_t text_size() const { return text_.size(); }

  // Whether the chunk has the text's tokens and extra keys, as far as both go.
  absl::StatusOr<bool> IsWith(const ChunkPlacement& chunk) const {
    if (chunk.token_count == 0 || chunk.position > position_) return false;
    if (position_ - chunk.position >= chunk.token_count) return false;
    if (chunk.position != position_) return IsWithin(chunk);
    if (chunk.token_count <= text_.size()) {
      return (chunk.token_count >= kHeadTokens || followed_.contains(chunk.id)) &&
             BeginsWith(chunk);
    }
    if (head_ == 0 || (chunk.token_hash().head != 0 && chunk.token_hash().head != head_))
      return false;
    return IsWithin(chunk);
  }

 private:
  bool BeginsWith(const ChunkPlacement& chunk) const {
    const auto tokens = std::span(text_).first(chunk.token_count);
    if (chunk.token_hash().head != 0 && chunk.token_hash().head != head_)
      return false;  // spares the hash
    const ChunkId plain = ComputeChunkId(fingerprint_, chunk.parent(), position_, tokens,
                                         ExtraKeysOf(keys_, 0, tokens.size()));
    return TaggedChunkId(plain, VerificationTagOf(plain, key_)) == chunk.id;
  }

  absl::StatusOr<bool> IsWithin(const ChunkPlacement& chunk) const {
    CKV_ASSIGN_OR_RETURN(const ChunkText reported, query_(chunk));
    const std::vector<int32_t>& tokens = reported.token_ids;
    const size_t skipped = position_ - chunk.position;
    if (tokens.size() <= skipped) return false;
    const size_t count = std::min(tokens.size() - skipped, text_.size());
    return std::equal(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(count),
                      tokens.begin() + static_cast<std::ptrdiff_t>(skipped)) &&
           ExtraKeysOf(keys_, 0, count) ==
               ExtraKeysOf(reported.extra_keys, skipped, skipped + count);
  }

  const ChunkId fingerprint_;
  const uint64_t position_;
  const std::vector<int32_t> text_;
  const ExtraKeys keys_;
  const uint64_t head_;  // 0 if the text has too few tokens
  const absl::flat_hash_set<ChunkId>& followed_;
  const TenantKey& key_;
  const ReadTokens& query_;
};

}  // namespace

ReadTokens QueryHolders(std::vector<Member> holders, const Geometry& geometry, std::string tenant,
                        Clock* clock, Instant deadline) {
  return [holders = std::move(holders), geometry, tenant = std::move(tenant), clock,
          deadline](const ChunkPlacement& chunk) -> absl::StatusOr<ChunkText> {
    absl::Status error = absl::UnavailableError("none of its holders is alive");
    for (const Member& holder : holders) {
      const auto& on = chunk.holders();
      if (std::find(on.begin(), on.end(), holder.id) == on.end()) continue;
      const auto stub = ConnectHolder(holder);
      absl::StatusOr<ChunkInfo> info =
          ReadChunkInfo({*stub, holder, geometry, tenant, *clock, deadline}, chunk.id);
      if (info.ok()) return ChunkText{std::move(info->token_ids), std::move(info->extra_keys)};
      error = info.status();
    }
    return absl::UnavailableError(
        absl::StrFormat("chunk %s: cannot compare its text with the text that is put: %s",
                        chunk.id.ShortHex(), std::string(error.message())));
  };
}

absl::Status CheckNoTextTwice(const Corpus& corpus, const ChunkSource& source,
                              std::span<const uint32_t> fresh, const TenantKey& key,
                              const ReadTokens& query) {
  absl::flat_hash_set<ChunkId> followed;
  for (const ChunkPlacement& chunk : corpus.chunks) followed.insert(chunk.parent());
  for (const uint32_t first : fresh) {
    if (!source.chunks()[first].parent.IsZero()) continue;
    const Overlap overlap(corpus, followed, source, first, key, query);
    for (size_t i = 0; i < corpus.chunks.size(); ++i) {
      const ChunkPlacement& chunk = corpus.chunks[i];
      CKV_ASSIGN_OR_RETURN(const bool doubled, overlap.IsWith(chunk));
      if (!doubled) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "corpus '%s' has this text already, in another cut: its chunk %d of %d tokens, at "
          "position %d, has the same tokens as the new text of %d tokens at position %d in "
          "chunks of %d",
          corpus.name, i, chunk.token_count, chunk.position, overlap.text_size(),
          overlap.position(), source.chunks()[first].token_count));
    }
  }
  return absl::OkStatus();
}

}  // namespace ckv
