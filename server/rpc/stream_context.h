// The chunks that a request of a stream names, and the context that was opened for them.

#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/requester.pb.h"
#include "client/context.h"
#include "server/rpc/request_corpora.h"

namespace ckv {

// The context of a stream, as a request named it.
struct StreamContext {
  v1::AttendRequest naming;  // only what names chunks
  RequestChunks chunks;
  Context context;
  // Stays the same when it is opened again.
  uint64_t number = 0;
  // An attend failed in a way that another placement of the chunks may cure.
  std::atomic<bool> doubtful{false};
};

// Whether a request names chunks, and whether it names the same as another.
bool NamesChunks(const v1::AttendRequest& request);
bool NamesSameChunks(const v1::AttendRequest& a, const v1::AttendRequest& b);
// Checks that a request which names no chunks says nothing about them that differs from `naming`.
//   InvalidArgument     it does.
absl::Status CheckUnnamed(const v1::AttendRequest& request, const v1::AttendRequest& naming);

// Returns what a request says of chunks and their context, and nothing else of it.
v1::AttendRequest NamingOf(const v1::AttendRequest& request);
// Returns the policy that a request names.
//   InvalidArgument     it is not known.
absl::StatusOr<ContextPolicy> PolicyOf(const v1::AttendRequest& request);
// Whether another snapshot has the same chunks in the same order.
bool SameChunks(const RequestChunks& a, const RequestChunks& b);

}  // namespace ckv
