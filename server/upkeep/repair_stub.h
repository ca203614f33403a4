// A RepairSource over gRPC: calls the directory and other holders for a holder that lost a chunk.

#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/directory_caller.h"
#include "client/grpc/directory_stub.h"
#include "proto/base/clock.h"
#include "server/upkeep/copy_search.h"

namespace ckv {

// Every error message names the call and the peer.
class RepairStub final : public CopySearch {
 public:
  // `self` is this holder as registered, and `directory` as for DirectoryCaller. The constructor
  // makes no network call. `clock` must outlive this object.
  RepairStub(const Member& self, const std::string& directory, Clock* clock);

  void Cancel() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Call;
  // At most kTenantCountMax.
  absl::StatusOr<std::vector<std::string>> AllTenants(Instant deadline) override;
  // The same, from one directory.
  absl::StatusOr<std::vector<std::string>> AllTenantsOnce(Instant deadline);
  absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override {
    return directory_.ListMembers(deadline);
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, const std::string& tenant,
                                                  Instant deadline) override {
    return directory_.LocateChunk(id, tenant, deadline);
  }
  // Makes the holder `from` push the chunk to this holder.
  absl::Status CopyFrom(const Member& from, const Corpus& place, Instant deadline) override;

  const std::string control_address_;  // this holder's
  Clock* const clock_;
  DirectoryStub directory_;
  DirectoryCaller watched_;  // for the Watch of AllTenants
  absl::Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // the call in progress, or null
};

}  // namespace ckv
