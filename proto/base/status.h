// Status codes with the caller's next action for each, and helpers that every module uses.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckv {

// A code names the largest thing that failed, so the caller's next action follows from the code
// alone.
enum class NextAct {
  kNone,          // OK
  kRetryLater,    // ResourceExhausted: overloaded; wait as hinted, then retry the same peer
  kReopen,        // Unavailable, Aborted: this lane or session is gone; open another
  kResolveAgain,  // NotFound: this directory entry or handle is stale
  kTryAnother,    // DataLoss, FailedPrecondition, DeadlineExceeded: this peer failed; try a replica
  kGiveUp,        // InvalidArgument, PermissionDenied, ...: no retry or replica can help
};
NextAct NextActFor(const absl::Status& status);

// Returns the same code with "context: " before the message; drops payloads. Returns OK for OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Returns a tool's exit status for this code. The values are stable and listed in `ckvctl --help`:
//   0  OK                 4  Unavailable          8   AlreadyExists
//   1  any other failure  5  DeadlineExceeded     9   DataLoss
//   2  InvalidArgument,   6  ResourceExhausted    10  PermissionDenied or Unauthenticated
//      or wrong usage     7  FailedPrecondition
//   3  NotFound
// OutOfRange exits as InvalidArgument does, Aborted as Unavailable.
int ExitCodeFor(const absl::Status& status);

}  // namespace ckv

// Checks a condition that only our own bug can break: if false, prints it and ends the process, in
// every build.
#define CKV_CHECK(condition)                                                                 \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: CKV_CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#define CKV_RETURN_IF_ERROR(expression)                                                 \
  do {                                                                                  \
    if (absl::Status ckv_status_ = (expression); !ckv_status_.ok()) return ckv_status_; \
  } while (false)

#define CKV_CONCAT_INNER_(a, b) a##b
#define CKV_CONCAT_(a, b) CKV_CONCAT_INNER_(a, b)
// CKV_ASSIGN_OR_RETURN(auto value, Compute());
#define CKV_ASSIGN_OR_RETURN(declaration, expression) \
  CKV_ASSIGN_OR_RETURN_(CKV_CONCAT_(ckv_or_, __LINE__), declaration, expression)
#define CKV_ASSIGN_OR_RETURN_(name, declaration, expression) \
  auto name = (expression);                                  \
  if (!name.ok()) return name.status();                      \
  declaration = *std::move(name)
