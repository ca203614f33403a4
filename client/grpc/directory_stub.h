// A requester's client of the directory, over gRPC.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "proto/base/clock.h"
#include "transport/control.h"

namespace ckv {

// Converts a call's status to an error that names the peer.
using ToStatus = std::function<absl::Status(const grpc::Status&)>;
// Queries a directory for the key of a tenant's chunk ids. If there is none and `make` is set, the
// directory creates one. Returns the zero key if there is none, and for the shared tenant.
absl::StatusOr<TenantKey> ReadTenantKey(v1::DirectoryService::StubInterface& stub,
                                        grpc::ClientContext& context, std::string_view tenant,
                                        bool make, const ToStatus& to_status);

// Thread-safe. Errors as in control.h; every message names the call and the directory's address.
class DirectoryStub final : public DirectoryControl {
 public:
  // Does not touch the network. `clock` must outlive it. With `for_calls`, GetCorpus and
  // LocateChunks leave out holders that lack a chunk if another live holder has it. Unset it to
  // read placements, not rows.
  DirectoryStub(std::string address, Clock* clock, bool for_calls = true);

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

  const std::string& address() const { return address_; }

 private:
  // Returns the geometry of a corpus that has the chunk. An id includes its model's fingerprint. So
  // a remembered corpus with the same chunk at the same place has the same geometry, however old.
  absl::StatusOr<Geometry> GeometryOf(const v1::LocateChunkReply::Place& place, const ChunkId& id,
                                      std::string_view tenant, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::string Context(std::string_view call) const;

  static constexpr size_t kRememberedCorpusCountMax = 16;

  const std::string address_;
  Clock* const clock_;
  const bool for_calls_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::DirectoryService::StubInterface> stub_;
  absl::Mutex mu_;
  std::deque<std::shared_ptr<const Corpus>> remembered_ ABSL_GUARDED_BY(mu_);  // newest first
};

}  // namespace ckv
