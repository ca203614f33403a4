// Chunks that an engine has just prefilled, on holders and in a corpus.
//
//   Publisher publisher("127.0.0.1:7400", Clock::Real());
//   CKV_ASSIGN_OR_RETURN(const CorpusEnd end, publisher.EndOf("docs", /*tenant=*/"", deadline));
//   CKV_ASSIGN_OR_RETURN(const TenantKey key, publisher.KeyOf(/*tenant=*/"", deadline));
//   CKV_ASSIGN_OR_RETURN(auto rows, ChunkAssembler::Begin(
//       end.geometry, {end.chunk, end.position, token_ids, key}, kBytesMax));
//   ... rows->Add(layer, offset, bytes) ...
//   MemorySource chunks(end.geometry);
//   CKV_ASSIGN_OR_RETURN(AssembledChunk whole, rows->Finish());
//   chunks.Add(std::move(whole.chunk), whole.print);
//   CKV_ASSIGN_OR_RETURN(auto report, publisher.Extend({.corpus = "docs"}, chunks, deadline));

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/directory.grpc.pb.h"
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
  // The last one, or the one that was asked about: the parent of the next, unless that is
  // standalone.
  ChunkId chunk;
  uint64_t position = 0;  // behind its last token
};

struct ExtendTarget {
  std::string corpus = {};  // its name
  std::string tenant = {};  // "" is the shared tenant
  // Copies of each new chunk. If 0, as many as the corpus' last chunk has, or 1.
  uint32_t replicas = 0;
  // If there is no such corpus, makes it. Otherwise that is NotFound.
  bool create = false;
};

struct ExtendReport {
  uint64_t version = 0;      // the version that has the chunks
  uint32_t chunk_begin = 0;  // ordinal of the first that is new; the corpus' size if none is
  uint32_t added_count = 0;  // chunks of `chunks` that the corpus did not have
  PutReport puts;
  // OK if the chunks stay in the corpus even if the directory crashes: it has a folder, or the
  // holders have recorded them (kept_parts.h). Otherwise names the holders that have not. Covers
  // chunks that the corpus already had, because the answer of an earlier put may have been lost.
  absl::Status kept;

  // Row bytes, to all holders together.
  uint64_t bytes_sent() const;
};

// Speaks to one directory and its holders. Thread-safe; each call is by itself.
class Publisher {
 public:
  // Does not touch the network. `clock` must outlive it.
  Publisher(std::string directory_address, Clock* clock);

  // Errors of all calls, beside their own:
  //   Unavailable         the directory or a holder does not answer.
  //   DeadlineExceeded    `deadline` came first.

  // Returns the key by which the ids of a tenant's chunks are made. The directory makes one if
  // there is none. The shared tenant has the zero key, and so have directories of earlier builds.
  absl::StatusOr<TenantKey> KeyOf(std::string_view tenant, Instant deadline);
  //   NotFound            the tenant has no such corpus itself. A shared one of that name is not
  //   its.
  //   FailedPrecondition  it has no chunk `chunk`.
  absl::StatusOr<CorpusEnd> EndOf(std::string_view corpus, std::string_view tenant,
                                  const ChunkId& chunk, Instant deadline);
  absl::StatusOr<CorpusEnd> EndOf(std::string_view corpus, std::string_view tenant,
                                  Instant deadline) {
    return EndOf(corpus, tenant, ChunkId(), deadline);
  }

  // Puts the chunks on holders and appends them to the corpus, in order, by one change: everybody
  // sees all of them or none. Chunks that the corpus has already are left out, so a call whose
  // answer was lost can be made again. The other chunks are not touched, read or sent. A change of
  // the corpus by somebody else meanwhile is no error: the chunks then go behind it.
  //   NotFound            the tenant has no such corpus itself, and not `create`.
  //   FailedPrecondition  The corpus has another geometry. Or the parent of a chunk is neither in
  //                       the corpus nor among those before it, or has another child. Or the corpus
  //                       already has this text in another cut (text_overlap.h). Or there are no
  //                       holders.
  //   InvalidArgument     there are no chunks, or more copies than holders.
  //   Aborted             others changed the corpus again and again, or drop what is put.
  //   DataLoss            a holder has other rows under an id.
  //   ResourceExhausted   the chunks do not fit; names the free space of each holder (room.h).
  // Rows are read and sent once, also if the corpus is changed meanwhile.
  absl::StatusOr<ExtendReport> Extend(const ExtendTarget& target, ChunkSource& chunks,
                                      Instant deadline, const PutObserver& observer = {});

 private:
  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant deadline);
  absl::StatusOr<std::vector<Member>> Holders(Instant deadline);
  // Returns the new version. Returns nothing if the corpus has another version than this by now.
  absl::StatusOr<std::optional<uint64_t>> Publish(const Corpus& corpus, Instant deadline);
  absl::Status CheckTexts(const ExtendTarget& target, const Corpus& corpus,
                          std::span<const uint32_t> fresh, const ChunkSource& chunks,
                          Instant deadline);
  absl::Status AwaitCorpusKept(const Corpus& corpus, Instant deadline);
  struct Putting;
  // Puts chunks `fresh` that are not placed yet, and sees to it that all are there.
  absl::Status PutNew(const ExtendTarget& target, const Corpus& corpus,
                      std::span<const uint32_t> fresh, ChunkSource& chunks, Instant deadline,
                      const PutObserver& observer, Putting& putting);
  // One attempt, over the corpus as it is now. Returns nothing if it was changed meanwhile.
  absl::StatusOr<std::optional<ExtendReport>> ExtendOnce(const ExtendTarget& target,
                                                         ChunkSource& chunks, Instant deadline,
                                                         const PutObserver& observer,
                                                         Putting& putting);
  absl::Status Error(const grpc::Status& status, std::string_view call) const;

  const std::string address_;
  Clock& clock_;
  DirectoryStub reader_;
  const std::unique_ptr<v1::DirectoryService::StubInterface> directory_;
};

}  // namespace ckv
