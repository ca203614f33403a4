// A RepairSource over gRPC: calls the directory and other holders for a holder that lost a chunk.

#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/directory_caller.h"
#include "client/grpc/directory_stub.h"
#include "proto/base/clock.h"
#include "server/upkeep/repairer.h"

namespace ckv {

// Every error message names the call and the peer.
class RepairStub final : public RepairSource {
 public:
  // `self` is this holder as registered, and `directory` as for DirectoryCaller. The constructor
  // makes no network call. `clock` must outlive this object.
  RepairStub(Member self, const std::string& directory, Clock* clock);

  absl::StatusOr<Restored> Restore(const LostChunk& lost, Instant deadline) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Call;
  // Returns the tenants of all corpora; at most kTenantCountMax.
  absl::StatusOr<std::vector<std::string>> AllTenants(Instant deadline);
  // The same, from one directory.
  absl::StatusOr<std::vector<std::string>> AllTenantsOnce(Instant deadline);
  // Makes one of the chunk's other holders push the chunk to this holder.
  absl::Status RestoreFor(const Corpus& place, const std::vector<Member>& members,
                          Instant deadline);
  absl::Status Push(const Member& from, const ChunkId& id, const Corpus& place, Instant deadline);

  const Member self_;
  Clock* const clock_;
  DirectoryStub directory_;
  DirectoryCaller watched_;  // for the Watch of AllTenants
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // the call in progress, or null
};

}  // namespace ckv
