#include "server/batch/ready_request.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/planted_bug.h"

namespace ckv {

uint32_t Saturate32(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<uint32_t>::max()));
}

absl::Status ExpiredError(const RequestHeader& header) {
  return absl::DeadlineExceededError(
      absl::StrFormat("the deadline passed before its turn: %d us were left when the request "
                      "reached the holder; give the call more time, or ask later",
                      header.deadline_us));
}

absl::Status CheckTurn(const ReadyRequest& ready, const LeaseGate& lease, Instant now,
                       ServeCounters& counters) {
  const RequestHeader& header = ready.header;
  if (header.session != ready.session->id.value) {
    BumpRefusal(counters, Refusal::kStaleSession);
    return absl::AbortedError("this lane belongs to another session: open a new one");
  }
  if (ready.refused) {
    BumpRefusal(counters, Refusal::kDraining);
    return absl::UnavailableError("the holder is draining");
  }
  if (!lease.LiveAt(now)) {
    BumpRefusal(counters, Refusal::kNoLease);
    return absl::UnavailableError("no live lease");
  }
  const Epoch epoch = lease.epoch();
  if (header.epoch != epoch.value && !CKV_PLANTED_BUG("epoch")) {
    BumpRefusal(counters, Refusal::kStaleSession);
    return absl::AbortedError(absl::StrFormat("epoch %d, this holder is in %d: open a new session",
                                              header.epoch, epoch.value));
  }
  if (now < ready.deadline()) return absl::OkStatus();
  Bump(counters.expired_count);
  return ExpiredError(header);
}

absl::StatusOr<ChunkPin> PinHandle(const ChunkTable& table, const Session& session,
                                   uint32_t handle) {
  if (const auto locator = session.handles.Lookup({handle}); locator.has_value()) {
    absl::StatusOr<ChunkPin> pin = table.Pin(*locator);
    if (pin.ok() || absl::IsUnavailable(pin.status())) return pin;
  }
  return absl::NotFoundError(
      absl::StrFormat("handle %d names no chunk here: resolve it again", handle));
}

namespace {

void LogRefusal(const ReadyRequest& ready, const absl::Status& error) {
  const ScopedTrace scope(TraceOf(ready.header));
  Log().debug("{}: request {} refused: {}", ready.session->requester, ready.header.request_id,
              error.ToString());
}

}  // namespace

void PostError(const ReadyRequest& ready, const absl::Status& error, uint32_t retry_after_us,
               ServeCounters& counters) {
  Bump(counters.errors[static_cast<size_t>(error.code())]);
  if (Logger().should_log(spdlog::level::debug)) LogRefusal(ready, error);
  const uint32_t bytes =
      EncodeErrorReply(ready.header, error, retry_after_us, ready.lane->reply(ready.slot));
  // A lane that broke meanwhile says so in its status, where the dispatcher looks.
  if (ready.lane->Post(ready.slot, bytes).ok()) Bump(counters.bytes_out, bytes);
}

void PostReply(const ReadyRequest& ready, const ReplyHeader& reply, ServeCounters& counters) {
  EncodeHeader(reply, ready.lane->reply(ready.slot));
  const uint32_t bytes = static_cast<uint32_t>(sizeof(ReplyHeader)) + reply.body_bytes;
  if (ready.lane->Post(ready.slot, bytes).ok()) Bump(counters.bytes_out, bytes);
}

}  // namespace ckv
