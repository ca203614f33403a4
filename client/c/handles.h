// The handles of the ABI as structs, and conversions that all its calls share.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/c/ckv.h"
#include "client/context/context.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/trace_context.h"
#include "proto/corpus.h"

namespace ckv::c {

struct Connection;  // client/c/open.cc: what the requester borrows

// A moment from now on, kInstantMax for CKV_TIMEOUT_NONE.
inline Instant After(uint64_t timeout_ns) {
  const Instant now = Clock::Real()->Now();
  const auto room = static_cast<uint64_t>(kInstantMax.ns - now.ns);
  return timeout_ns >= room ? kInstantMax : Instant{now.ns + static_cast<int64_t>(timeout_ns)};
}
// The same for a field of a struct, whose 0 is the default.
inline Instant AfterField(uint64_t timeout_ns) {
  return After(timeout_ns == 0 ? CKV_TIMEOUT_DEFAULT : timeout_ns);
}

// Reads a traceparent, which may be null.
//   InvalidArgument     it is malformed.
absl::Status TakeTrace(const char* traceparent, TraceContext& to);

// Reads a type of partials on the wire.
//   InvalidArgument     it is none.
absl::Status TakeWire(uint32_t wire, PartialDtype& to);

// Says that a pointer is missing.
absl::Status Missing(const char* what);

}  // namespace ckv::c

struct ckv_requester {
  explicit ckv_requester(std::unique_ptr<ckv::c::Connection> made);
  ~ckv_requester();

  std::unique_ptr<ckv::c::Connection> connection;
  ckv::Requester* requester = nullptr;  // the connection's
  std::string tenant;
  std::atomic<uint32_t> in_flight{0};  // tickets and fetches that are not freed
};

struct ckv_corpus {
  const ckv_requester* owner;  // compared only: it may be gone
  std::shared_ptr<const ckv::Corpus> corpus;
};

struct ckv_context {
  const ckv_requester* owner;  // as above
  ckv::Context context;
};
