// A put in steps: its target, then each chunk and its rows, then all of them into a corpus.

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
  // The chunk of the corpus that the first chunk of a chain follows. If zero, that one has no
  // parent and begins at its own position.
  ChunkId parent = {};
  // The chunks' geometry; by default the corpus' own. A corpus that is made needs it.
  std::optional<Geometry> geometry = {};
};

struct WriteChunk {
  std::vector<int32_t> token_ids;
  // Its rows were made alone at position 0, and its id depends on its tokens only. Otherwise it
  // follows the one before it that is not standalone, or the target's parent.
  bool standalone = false;
  // The position of the first token, if the chunk has no parent. That of any other follows from its
  // parent, and is checked if it is not 0.
  uint64_t position = 0;
  // Pictures and the like, counted from its first token, in any order. A picture that began in the
  // previous chunk is a key of this one too, with a negative begin.
  ExtraKeys extra_keys = {};
};

// Thread-compatible: one thread at a time. Keeps all rows until it is destroyed.
class CorpusWriter {
 public:
  // Asked before the memory of a chunk's rows is taken. An error ends AddChunk.
  using TakeRoom = std::function<absl::Status(uint64_t bytes)>;

  // Reads from the directory what the corpus is now. `publisher` must outlive the writer.
  //   NotFound            the tenant has no such corpus itself, and extend.create is not set.
  //   FailedPrecondition  the corpus has another geometry, or no chunk `parent`.
  //   InvalidArgument     the corpus' name; or it is not there, and there is no geometry.
  //   Unavailable, DeadlineExceeded  the directory does not answer, or not in time.
  static absl::StatusOr<std::unique_ptr<CorpusWriter>> Begin(Publisher* publisher,
                                                             const WriteTarget& target,
                                                             TakeRoom take_room, Instant deadline);

  // Ends the chunk before, and begins the next.
  //   FailedPrecondition  rows of the chunk before are missing.
  //   InvalidArgument     there are no tokens or too many, a token id or extra key is invalid, or
  //                       the position does not follow.
  //   ResourceExhausted   there is no memory; and the errors of `take_room`.
  absl::Status AddChunk(WriteChunk chunk);
  // As ChunkAssembler::Add, for the last chunk.
  //   FailedPrecondition  there is no chunk whose rows are due.
  absl::Status AddRows(uint32_t layer, uint64_t offset, std::span<const std::byte> rows);
  // Ends the last chunk and publishes all (Publisher::Extend). May be called again after an error.
  //   FailedPrecondition  rows are missing, or the put is done.
  absl::StatusOr<ExtendReport> Finish(Instant deadline);

  const ExtendTarget& target() const { return target_; }
  const Geometry& geometry() const { return chunks_.geometry(); }
  // Those that have all their rows.
  const std::vector<PlannedChunk>& chunks() const { return chunks_.chunks(); }

 private:
  CorpusWriter(Publisher* publisher, ExtendTarget target, const Geometry& geometry,
               TakeRoom take_room)
      : publisher_(*publisher),
        target_(std::move(target)),
        take_room_(std::move(take_room)),
        chunks_(geometry) {}
  absl::Status EndChunk();

  Publisher& publisher_;
  const ExtendTarget target_;
  const TakeRoom take_room_;
  TenantKey key_;  // makes the ids
  // The next chunk of the chain follows this one, and begins there.
  ChunkId parent_;
  uint64_t position_ = 0;
  MemorySource chunks_;
  std::unique_ptr<ChunkAssembler> chunk_;  // the one whose rows come
  bool is_standalone_ = false;             // chunk_
  bool done_ = false;
};

}  // namespace ckv
