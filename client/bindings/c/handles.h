// The handles of the C ABI as structs, and the conversions that all its calls share.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "attention/backend.h"
#include "client/bindings/c/ckv.h"
#include "client/bindings/c/last_error.h"
#include "client/context.h"
#include "client/holders/host_cache.h"
#include "client/prompt_match.h"
#include "client/requester.h"
#include "client/row_choice.h"
#include "proto/base/clock.h"
#include "proto/base/trace_context.h"
#include "proto/corpus.h"

namespace ckv::c {

class LoadLink;  // client/bindings/c/load_link.h

// Returns the time `timeout_ns` from now; kInstantMax for CKV_TIMEOUT_NONE.
inline Instant After(uint64_t timeout_ns) {
  const Instant now = Clock::Real()->Now();
  const auto longest = static_cast<uint64_t>(kInstantMax.ns - now.ns);
  return timeout_ns >= longest ? kInstantMax : Instant{now.ns + static_cast<int64_t>(timeout_ns)};
}
// The same for a field of a struct, in which 0 means the default.
inline Instant AfterField(uint64_t timeout_ns) {
  return After(timeout_ns == 0 ? CKV_TIMEOUT_DEFAULT : timeout_ns);
}

// Reads a traceparent, which may be null.
//   InvalidArgument     the text is malformed.
absl::Status TakeTrace(const char* traceparent, TraceContext& to);

// Reads a data type of partials on the wire. CKV_DTYPE_DEFAULT leaves `to` as it is.
//   InvalidArgument     `wire` is not a known type.
absl::Status TakeWire(uint32_t wire, PartialDtype& to);

// Reads a kind of memory. The requester checks separately what else its backend can reach.
//   InvalidArgument     `kind` is not a known kind; or it is device memory, and the CPU computes.
absl::Status TakeMemory(const char* what, uint32_t kind, const Backend& backend, MemoryKind& to);

// Returns InvalidArgument for a null pointer argument named `what`.
absl::Status Missing(const char* what);

// Returns an Owner for a new requester, different from all earlier ones.
inline Owner NextOwner() {
  static std::atomic<uint64_t> last{0};
  return {last.fetch_add(1, std::memory_order_relaxed) + 1};
}

// Returns the owner of a handle; the empty Owner for NULL.
template <typename Handle>
Owner OwnerOf(const Handle* handle) {
  return handle == nullptr ? Owner() : handle->owner;
}

}  // namespace ckv::c

struct ckv_requester {
  // `keeps` owns `made` and everything that `made` borrows; null if they are owned elsewhere. `of`
  // is the tenant. `at` is the directory's address, for puts. `reason` describes the backend
  // `by` (ckv_backend_reason).
  ckv_requester(std::shared_ptr<void> keeps, ckv::Requester* made, std::string of,
                std::string at = "", ckv::Backend* by = ckv::Backend::Cpu(),
                std::string reason = "", ckv::HostCache* cache = nullptr)
      : connection(std::move(keeps)),
        requester(made),
        tenant(std::move(of)),
        directory(std::move(at)),
        backend(by),
        backend_reason(std::move(reason)),
        host_cache(cache) {}

  const ckv::c::Owner owner = ckv::c::NextOwner();
  const std::shared_ptr<void> connection;
  ckv::Requester* const requester;
  const std::string tenant;
  const std::string directory;
  ckv::Backend* const backend;  // the requester's; valid until the process ends
  const std::string backend_reason;
  ckv::HostCache* const host_cache;  // null if not configured
  // Null if there is no directory over gRPC. Set before the handle is given out.
  std::shared_ptr<ckv::c::LoadLink> load_link;
  std::atomic<uint32_t> in_flight{0};  // tickets, fetches and puts not freed yet
};

struct ckv_corpus {
  ckv::c::Owner owner;
  std::shared_ptr<const ckv::Corpus> corpus;
  // The positions of its chunks in the prompt by which it was found. Empty if it was resolved by
  // name.
  std::vector<ckv::PromptSpan> spans = {};
};

struct ckv_context {
  ckv::c::Owner owner;
  ckv::Context context;
};

struct ckv_choice {
  ckv::c::Owner owner;
  ckv::RowChoice choice;
};

struct ckv_stream {
  std::unique_ptr<ckv::ComputeStream> stream;
};
