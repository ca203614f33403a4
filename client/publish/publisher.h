// Puts an engine's newly prefilled chunks on holders, and appends them to a corpus.
//
//   Publisher publisher("127.0.0.1:7400", Clock::Real());
//   CKV_ASSIGN_OR_RETURN(const CorpusEnd end, publisher.EndOf("docs", /*tenant=*/"", deadline));
//   CKV_ASSIGN_OR_RETURN(const TenantKey key, publisher.KeyOf(/*tenant=*/"", deadline));
//   CKV_ASSIGN_OR_RETURN(auto rows, ChunkAssembler::Begin(
//       end.geometry, {end.chunk, end.position, token_ids, key}, kBytesMax));
//   ... rows->Add(layer, offset, bytes) ...
//   MemorySource chunks(end.geometry);
//   CKV_ASSIGN_OR_RETURN(AssembledChunk whole, rows->Finish());
//   chunks.Add(std::move(whole.chunk), whole.token_hash);
//   CKV_ASSIGN_OR_RETURN(auto report, publisher.Extend({.corpus = "docs"}, chunks, deadline));

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/grpc/directory_caller.h"
#include "client/grpc/directory_stub.h"
#include "client/publish/chunk_puts.h"
#include "client/publish/chunk_source.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// The end of a corpus, where its next chunk begins.
struct CorpusEnd {
  Geometry geometry;
  uint64_t version = 0;
  uint32_t chunk_count = 0;
  // The last chunk, or the requested one: the parent of the next chunk, unless that is standalone.
  ChunkId chunk;
  uint64_t position = 0;  // the position after its last token
};

struct ExtendTarget {
  std::string corpus = {};  // its name
  std::string tenant = {};  // "" is the shared tenant
  // Copies of each new chunk. If 0, as many as the corpus wants, or 1.
  uint32_t replicas = 0;
  // Whether to make the corpus if it does not exist. Otherwise that is NotFound.
  bool create = false;
  // Set by the change that adds the chunks, even if the corpus has them all. An unset field keeps
  // what the corpus has.
  CorpusPolicy policy = {};
};

struct ExtendReport {
  uint64_t version = 0;      // the corpus version that contains the chunks
  uint32_t chunk_begin = 0;  // ordinal of the first new chunk; the corpus's size if none is new
  uint32_t added_count = 0;  // chunks of `chunks` that the corpus did not have
  PutReport puts;
  // OK if the chunks stay in the corpus even if the directory crashes: it has a folder, or the
  // holders have recorded them (kept_parts.h). Otherwise names the holders that have not. Covers
  // chunks that the corpus already had, because the answer of an earlier put may have been lost.
  absl::Status kept;

  // Bytes of rows sent to all holders together.
  uint64_t bytes_sent() const;
};

// A client of a directory and its holders. Thread-safe; calls are independent of each other.
class Publisher {
 public:
  // `directory` is "host:port" or a list, as for DirectoryCaller. Does not touch the network.
  // `clock` must outlive it.
  Publisher(std::string_view directory, Clock* clock);

  // Errors of all calls, in addition to their own:
  //   Unavailable         the directory or a holder does not answer.
  //   DeadlineExceeded    `deadline` passed first.

  // Returns the key by which the ids of a tenant's chunks are made. The directory makes one if
  // there is none. The key is zero for the shared tenant, and at a directory without a folder.
  absl::StatusOr<TenantKey> KeyOf(std::string_view tenant, Instant deadline);
  // Returns the end of a corpus, or of its chunk `chunk` if that is not zero.
  //   NotFound            the tenant itself has no such corpus. A shared one of that name does not
  //                       count.
  //   FailedPrecondition  the corpus has no chunk `chunk`.
  absl::StatusOr<CorpusEnd> EndOf(std::string_view corpus, std::string_view tenant,
                                  const ChunkId& chunk, Instant deadline);
  absl::StatusOr<CorpusEnd> EndOf(std::string_view corpus, std::string_view tenant,
                                  Instant deadline) {
    return EndOf(corpus, tenant, ChunkId(), deadline);
  }

  // Puts the chunks on holders and appends them to the corpus, in order, by one change: readers see
  // all of them or none. Chunks that the corpus already has are skipped, so a call whose answer was
  // lost can be repeated. The corpus's other chunks are not touched, read or sent. If another
  // client changes the corpus meanwhile, the chunks are appended after its change; that is no
  // error.
  //   NotFound            the tenant itself has no such corpus, and `create` is not set.
  //   FailedPrecondition  The corpus has another geometry. Or the parent of a chunk is neither in
  //                       the corpus nor among the previous chunks, or has another child. Or the
  //                       corpus already has this text in other chunks (text_overlap.h). Or there
  //                       are no holders.
  //   InvalidArgument     there are no chunks, or more copies than holders. Or the policy has a
  //                       value out of range.
  //   Aborted             other clients changed the corpus again and again, or drop what is put.
  //   DataLoss            a holder has other rows under an id.
  //   ResourceExhausted   the chunks do not fit; names the free space of holders
  //                       (capacity_placement.h). Or they do not fit into the corpus's quota.
  // Rows are read and sent once, even if the corpus is changed meanwhile.
  absl::StatusOr<ExtendReport> Extend(const ExtendTarget& target, ChunkSource& chunks,
                                      Instant deadline, const PutObserver& observer = {});

 private:
  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant deadline);
  absl::StatusOr<std::vector<Member>> Holders(Instant deadline);
  // Returns the new version, or nothing if the corpus no longer has the version of `corpus`.
  absl::StatusOr<std::optional<uint64_t>> Publish(const Corpus& corpus, Instant deadline);
  absl::Status CheckTexts(const ExtendTarget& target, const Corpus& corpus,
                          std::span<const uint32_t> fresh, const ChunkSource& chunks,
                          Instant deadline);
  absl::Status AwaitCorpusKept(const Corpus& corpus, Instant deadline);
  struct Putting;
  // Puts the chunks of `fresh` that are not placed yet, and ensures that all are on their holders.
  absl::Status PutNew(const ExtendTarget& target, const Corpus& corpus,
                      std::span<const uint32_t> fresh, ChunkSource& chunks, Instant deadline,
                      const PutObserver& observer, Putting& putting);
  // One attempt, on the corpus's current version. Returns nothing if it was changed meanwhile.
  absl::StatusOr<std::optional<ExtendReport>> ExtendOnce(const ExtendTarget& target,
                                                         ChunkSource& chunks, Instant deadline,
                                                         const PutObserver& observer,
                                                         Putting& putting);
  // Returns the deadline of one call.
  Instant CallDeadline(Instant deadline) const;

  Clock& clock_;
  DirectoryStub reader_;
  DirectoryCaller directory_;
};

}  // namespace ckv
