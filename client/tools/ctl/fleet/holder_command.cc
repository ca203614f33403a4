// ckvctl holder drain and undrain: empties a holder before its machine goes.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/time_span.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

// How often the state of a drain is queried.
constexpr Duration kLookPeriod = std::chrono::milliseconds(500);

struct DrainOptions {
  std::string name;
  bool no_wait = false;
  uint32_t timeout_ms = 3'600'000;
};

// Begins or ends the drain, or only returns its state if `drain` is unset.
absl::StatusOr<v1::DrainHolderReply> Call(Fleet& fleet, const std::string& name,
                                          std::optional<bool> drain) {
  v1::DrainHolderRequest request;
  request.set_name(name);
  if (drain) request.set_drain(*drain);
  v1::DrainHolderReply reply;
  CKV_RETURN_IF_ERROR(
      fleet.CallDirectory(&DirectoryCaller::Stub::DrainHolder, "DrainHolder", request, &reply));
  return reply;
}

std::string Left(const v1::DrainHolderReply& state) {
  std::string text =
      absl::StrFormat("%s on it, %s to copy", FormatCount(state.chunk_count(), "chunk"),
                      FormatBytes(state.bytes_left()));
  if (state.ms_left() > 0) text += absl::StrFormat(", about %d s", (state.ms_left() + 999) / 1000);
  return text;
}

void Show(const Ctl& ctl, const std::string& name, const v1::DrainHolderReply& state) {
  std::string text;
  if (!state.is_draining()) {
    text = absl::StrFormat("holder %s is not drained: it takes chunks\n", name);
  } else if (state.may_go()) {
    text = absl::StrFormat("holder %s may go: no corpus has a chunk on it\n", name);
  } else {
    text = absl::StrFormat("holder %s is drained: %s\n", name, Left(state));
  }
  ctl.Print(text, {{"holder", name},
                   {"is_draining", state.is_draining()},
                   {"may_go", state.may_go()},
                   {"chunk_count", state.chunk_count()},
                   {"bytes_left", state.bytes_left()},
                   {"ms_left", state.ms_left()},
                   {"stuck_count", state.stuck_count()},
                   {"stuck_why", state.stuck_why()}});
}

// Waits until the holder may go.
absl::StatusOr<v1::DrainHolderReply> Await(const Ctl& ctl, Fleet& fleet,
                                           const DrainOptions& options) {
  const Instant deadline = ctl.clock->Now() + std::chrono::milliseconds(options.timeout_ms);
  std::unique_ptr<Progress> progress;
  uint64_t total = 0, done = 0;
  bool is_warned = false;
  while (true) {
    CKV_ASSIGN_OR_RETURN(v1::DrainHolderReply state, Call(fleet, options.name, std::nullopt));
    if (state.may_go()) return state;
    if (!state.is_draining()) {
      return absl::AbortedError(
          absl::StrFormat("the drain of holder %s was ended meanwhile", options.name));
    }
    if (progress == nullptr && state.chunk_count() > 0) {
      total = state.chunk_count();
      progress = ctl.StartProgress("drain", "chunks", total);
    }
    if (const uint64_t gone = total - std::min<uint64_t>(total, state.chunk_count()); gone > done) {
      progress->Advance(gone - done);
      done = gone;
    }
    if (state.stuck_count() > 0 && !std::exchange(is_warned, true)) {
      ctl.Note(absl::StrFormat("ckvctl: warning: %d copies cannot be made: %s", state.stuck_count(),
                               state.stuck_why()));
    }
    const Instant next = ctl.clock->Now() + kLookPeriod;
    if (next >= deadline) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "holder %s: %s\n  the drain continues; run the command again to wait for its end",
          options.name, Left(state)));
    }
    ctl.clock->WaitUntil(next);
  }
}

absl::Status RunDrain(const Ctl& ctl, const DrainOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(v1::DrainHolderReply state, Call(fleet, options.name, true));
  if (!options.no_wait) {
    CKV_ASSIGN_OR_RETURN(state, Await(ctl, fleet, options));
  }
  Show(ctl, options.name, state);
  return absl::OkStatus();
}

absl::Status RunUndrain(const Ctl& ctl, const DrainOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  CKV_ASSIGN_OR_RETURN(const v1::DrainHolderReply state, Call(fleet, options.name, false));
  Show(ctl, options.name, state);
  return absl::OkStatus();
}

}  // namespace

void AddHolderCommands(CLI::App& app, Ctl& ctl) {
  CLI::App* holder = app.add_subcommand("holder", "Empty a holder before its machine is removed");
  holder->require_subcommand(1);
  const auto options = std::make_shared<DrainOptions>();
  CLI::App* drain = AddVerb(
      *holder, "drain", "Copy a holder's chunks to others, and wait until it may go",
      "  ckvctl holder drain node3-holder-7401 && ssh node3 systemctl stop ckvd-holder@0\n\n"
      "Each chunk leaves the holder's corpora once its copy is whole elsewhere. The mark lasts\n"
      "until holder undrain, over restarts of the directory and of the holder; no chunks are\n"
      "placed on it meanwhile. An interrupted command ends only the wait.");
  drain->add_option("HOLDER", options->name, "The holder")->required()->check(NotEmpty());
  drain->add_flag("--no-wait", options->no_wait, "Begin the drain, show its state, and return");
  AddTimeout(*drain, "--timeout", options->timeout_ms, "Limit of the wait");
  drain->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunDrain(ctl, *options); }; });
  CLI::App* undrain = AddVerb(*holder, "undrain", "End the drain: the holder takes chunks again",
                              "  ckvctl holder undrain node3-holder-7401\n\n"
                              "Chunks that were copied elsewhere stay there.");
  undrain->add_option("HOLDER", options->name, "The holder")->required()->check(NotEmpty());
  undrain->callback(
      [&ctl, options] { ctl.run = [&ctl, options] { return RunUndrain(ctl, *options); }; });
}

}  // namespace ckv::ctl
