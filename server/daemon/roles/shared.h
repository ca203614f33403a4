// The parts that all roles of a daemon share: configuration, fabrics, kernels, the gate of its
// calls, and the facts that the process reports.

#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/ids.h"
#include "proto/process_facts.h"
#include "server/daemon/config.h"
#include "server/daemon/kernel_start.h"
#include "server/rpc/service_gate.h"
#include "server/telemetry/span_writer.h"
#include "server/telemetry/trace_sampler.h"
#include "transport/fabric.h"
#include "transport/socket.h"

namespace ckv {

// Declare it before the roles, which borrow it. One thread starts it; then the members that are
// not const, except the atomic and the guarded ones, do not change.
struct DaemonShared {
  explicit DaemonShared(const Config& wanted)
      : config(wanted),
        gate(wanted.rpc_thread_count_max / 2),
        sampler(wanted.trace_sample_one_in) {}

  // Gives the process the name that it was not given.
  absl::Status Name();
  // Starts the writer of spans and the fabrics. Call it after Name, once `backends` is set.
  absl::Status Start();

  ProcessFacts Process() const;
  bool HearsDirectory() const { return directory_connected.load(std::memory_order_relaxed); }
  // The directory's address for peers, or a list; this process' own once it listens. From any
  // thread.
  std::string DirectoryAddress() const ABSL_LOCKS_EXCLUDED(published_mu);
  // Sets this process' address for peers.
  void Publish(const std::string& address) ABSL_LOCKS_EXCLUDED(published_mu);

  Config config;
  Clock* const clock = Clock::Real();
  const Instant started = clock->Now();
  DaemonBackends backends;
  ServiceGate gate;
  TraceSampler sampler;
  std::unique_ptr<SpanWriter> spans;  // null if none are written
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<Fabric*> fabric_order;
  UniqueFd held_port;  // keeps the port of config.listen until the server has it
  std::atomic<bool> directory_connected{false};  // a hint for people; orders nothing
  // Guards published_address, which calls may read meanwhile.
  mutable absl::Mutex published_mu;
  std::string published_address ABSL_GUARDED_BY(published_mu);
};

}  // namespace ckv
