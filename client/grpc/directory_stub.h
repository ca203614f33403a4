// A requester's client of the directory, over gRPC.

#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/grpc/directory_caller.h"
#include "proto/base/clock.h"
#include "transport/control.h"

namespace ckv {

// Queries a directory for the key of a tenant's chunk ids. If there is none and `make` is set, the
// directory creates one. Returns the zero key if there is none, and for the shared tenant. `end` as
// for DirectoryCaller::Call.
absl::StatusOr<TenantKey> ReadTenantKey(DirectoryCaller& directory, std::string_view tenant,
                                        bool make, Instant deadline, CallEnd* end = nullptr);

// Thread-safe. Errors as in control.h; every message names the call and the directory's address.
// Calls go to the directory that leads, if there are several (directory_caller.h).
class DirectoryStub final : public DirectoryControl {
 public:
  // `addresses` is "host:port" or a list "host:port,host:port,...". Does not touch the network.
  // `clock` must outlive it. With `for_calls`, GetCorpus and LocateChunks leave out holders that
  // lack a chunk if another live holder has it, and chunks' parents and token hashes. Unset it to
  // read placements, not rows.
  DirectoryStub(std::string_view addresses, Clock* clock, bool for_calls = true);

  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant deadline) override;
  absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override;
  // Each result has the corpus's name and geometry, and only this chunk.
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, std::string_view tenant,
                                                  Instant deadline) override
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::vector<ChunkPlacement>> LocateChunks(std::span<const ChunkId> ids,
                                                           const Geometry& geometry,
                                                           std::string_view tenant,
                                                           Instant deadline) override;

  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant deadline) override;
  absl::StatusOr<PromptChunks> FindPrompt(std::span<const uint64_t> heads,
                                          const std::optional<ChunkId>& model,
                                          std::string_view tenant, Instant deadline) override;

  // OK, or the error of every call: the addresses are a malformed list.
  const absl::Status& address_status() const { return directory_.address_status(); }

 private:
  using Stub = DirectoryCaller::Stub;
  // Returns the geometry of a corpus that has the chunk. An id includes its model's fingerprint. So
  // a remembered corpus with the same chunk at the same place has the same geometry, however old.
  absl::StatusOr<Geometry> GeometryOf(const v1::LocateChunkReply::Place& place, const ChunkId& id,
                                      std::string_view tenant, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::string Context(std::string_view call) const;

  static constexpr size_t kRememberedCorpusCountMax = 16;

  const bool for_calls_;
  DirectoryCaller directory_;
  absl::Mutex mu_;
  std::deque<std::shared_ptr<const Corpus>> remembered_ ABSL_GUARDED_BY(mu_);  // newest first
};

}  // namespace ckv
