// A CopySource over gRPC: the directory and the other holders, for a holder that makes copies.

#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/directory_caller.h"
#include "proto/base/clock.h"
#include "server/directory/directory_state.h"
#include "server/upkeep/copy_maker.h"
#include "server/upkeep/replica_stub.h"

namespace ckv {

// Thread-safe. Every error message of a call names the call and the peer.
class CopyStub final : public CopySource {
 public:
  // Calls the directory at `directory`, one or several addresses. If that is empty, calls `local`,
  // the directory of this process.
  // Makes no network call. `local` and `clock` must outlive this object.
  CopyStub(const std::string& directory, DirectoryState* local, Clock* clock);

  absl::StatusOr<std::vector<CopyOrder>> ListOrders(uint64_t lease_id, uint32_t count_max,
                                                    Instant deadline) override;
  absl::Status Report(uint64_t lease_id, std::span<const CopyReport> reports,
                      Instant deadline) override;
  absl::StatusOr<ChunkInfo> GetInfo(const Member& holder, const CopyOrder& order,
                                    Instant deadline) override;
  absl::Status ReadRows(const Member& holder, const CopyOrder& order, TakeRows take,
                        Instant deadline) override;
  void Cancel() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Cancellable;

  DirectoryState* const local_;
  Clock* const clock_;
  ChunkInfoStub infos_;
  const std::unique_ptr<DirectoryCaller> directory_;  // null if it is local
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);  // calls in progress
};

}  // namespace ckv
