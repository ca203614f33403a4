// Puts chunks into a corpus in steps: the target, then each chunk and its rows, then the
// publication.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_assembler.h"
#include "client/publish/publisher.h"
#include "proto/base/clock.h"

namespace ckv {

struct WriteTarget {
  ExtendTarget extend;
  // The chunk of the corpus that the first chunk of a chain follows. If zero, that first chunk has
  // no parent and begins at its own position.
  ChunkId parent = {};
  // The chunks' geometry; by default the corpus's own. Required if the corpus does not exist yet.
  std::optional<Geometry> geometry = {};
};

struct WriteChunk {
  std::vector<int32_t> token_ids;
  // Whether its rows were computed alone at position 0, so that its id depends on its tokens only.
  // Otherwise it follows the previous chunk that is not standalone, or the target's parent.
  bool standalone = false;
  // The position of the first token, if the chunk has no parent. Otherwise its parent determines
  // the position, and a value other than 0 is checked.
  uint64_t position = 0;
  // Pictures and the like, counted from its first token, in any order. A picture that began in the
  // previous chunk is a key of this chunk too, with a negative begin.
  ExtraKeys extra_keys = {};
};

// Thread-compatible: one thread at a time. Keeps all rows until it is destroyed.
class CorpusWriter {
 public:
  // Called before the memory of a chunk's rows is allocated. An error ends AddChunk.
  using TakeQuota = std::function<absl::Status(uint64_t bytes)>;

  // Reads the corpus's current state from the directory. `publisher` must outlive the writer.
  //   NotFound            the tenant itself has no such corpus, and extend.create is not set.
  //   FailedPrecondition  the corpus has another geometry, or no chunk `parent`.
  //   InvalidArgument     the corpus's name is not valid; or there is no such corpus yet, and no
  //                       geometry.
  //   Unavailable         the directory does not answer.
  //   DeadlineExceeded    the directory does not answer in time.
  static absl::StatusOr<std::unique_ptr<CorpusWriter>> Begin(Publisher* publisher,
                                                             const WriteTarget& target,
                                                             TakeQuota take_quota,
                                                             Instant deadline);

  // Ends the previous chunk, and begins the next.
  //   FailedPrecondition  rows of the previous chunk are missing.
  //   InvalidArgument     there are no tokens or too many, a token id or extra key is not valid, or
  //                       the position does not follow.
  //   ResourceExhausted   there is no memory.
  //   Errors of `take_quota`.
  absl::Status AddChunk(WriteChunk chunk);
  // Adds rows of a tensor of the last chunk, as ChunkAssembler::Add.
  //   FailedPrecondition  there is no chunk that lacks rows.
  absl::Status AddRows(uint32_t tensor, uint64_t offset, std::span<const std::byte> rows);
  // Ends the last chunk and publishes all chunks (Publisher::Extend). May be repeated after an
  // error.
  //   FailedPrecondition  rows are missing, or the put is already done.
  absl::StatusOr<ExtendReport> Finish(Instant deadline);

  const ExtendTarget& target() const { return target_; }
  const Geometry& geometry() const { return chunks_.geometry(); }
  // The chunks that have all their rows.
  const std::vector<PlannedChunk>& chunks() const { return chunks_.chunks(); }

 private:
  CorpusWriter(Publisher* publisher, ExtendTarget target, const Geometry& geometry,
               TakeQuota take_quota)
      : publisher_(*publisher),
        target_(std::move(target)),
        take_quota_(std::move(take_quota)),
        chunks_(geometry) {}
  absl::Status EndChunk();

  Publisher& publisher_;
  const ExtendTarget target_;
  const TakeQuota take_quota_;
  TenantKey key_;  // makes the ids
  // The parent and the position of the next chunk of the chain.
  ChunkId parent_;
  uint64_t position_ = 0;
  MemorySource chunks_;
  std::unique_ptr<ChunkAssembler> chunk_;  // the chunk that is being filled
  bool is_standalone_ = false;             // whether chunk_ is standalone
  bool done_ = false;
};

}  // namespace ckv
