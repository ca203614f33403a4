// The directories of a simulated fleet: one with a folder, or two whose state is in etcd.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/directory/etcd/etcd_directory.h"
#include "server/directory/etcd/etcd_store.h"
#include "tests/sim/client_calls.h"
#include "tests/sim/fleet.h"

namespace ckv::sim {
namespace {

// As server/daemon/roles/directory_role.cc.
void TickDirectory(DirectoryState& state) {
  state.Expire();
  state.corpora().DropExpired();
  state.reports().PublishRebuilt();
  state.changes().SubmitMembers();
  state.replication().Tick();
}

}  // namespace

void Fleet::RunDirectory(Life* life, Node& node) {
  DirectoryOptions options;
  options.clock = &life->clock;
  options.first_epoch = WallClockMilliseconds();
  if (plan_.shape.is_shared) return RunSharedDirectory(life, node, options);
  ChangeLogOptions log;
  log.path = "/directory";
  log.files = node.disk.get();
  log.clock = &life->clock;
  log.log_bytes_min = 4096;  // so that there are snapshots
  std::unique_ptr<DurableDirectory> directory;
  while (directory == nullptr) {
    auto opened = DurableDirectory::Open(options, log);
    if (opened.ok()) {
      directory = *std::move(opened);
    } else {
      Say(absl::StrCat("directory does not start: ", std::string(opened.status().message())));
      if (absl::IsDataLoss(opened.status())) {
        return truth_.Breach(
            absl::StrCat("I3: the directory's log: ", std::string(opened.status().message())));
      }
      if (life->ending) return;
      Sim().SleepUntil(Sim().now() + 500 * kMs);
    }
  }
  life->directory = &directory->state();
  truth_.CheckDirectory(*life, [] { return true; });
  while (!life->ending) {
    Sim().Block(Sim().now() + 500 * kMs, [&] { return life->ending; });
    TickDirectory(directory->state());
  }
  life->directory = nullptr;
  Sim().Block(kNever, [&] { return life->call_count == 0; });
  EndWatches(*life);
}

void Fleet::RunSharedDirectory(Life* life, Node& node, DirectoryOptions options) {
  options.lease_ttl_min = EtcdDirectory::kLeaseTtlMin;
  const EtcdStore store = {.endpoints = {"etcd"}, .prefix = "/ckv/"};
  const std::unique_ptr<DurableDirectory> home = DurableDirectory::OpenShared(options, "etcd");
  std::unique_ptr<EtcdDirectory> etcd;
  while (etcd == nullptr) {
    auto opened = EtcdDirectory::Open(store, &life->clock, &home->state(),
                                      life->clock.Now() + std::chrono::seconds(5));
    if (opened.ok()) {
      etcd = *std::move(opened);
      break;
    }
    const std::string why(opened.status().message());
    Say(absl::StrCat(node.name, " does not start: ", why));
    if (absl::IsDataLoss(opened.status()))
      return truth_.Breach(absl::StrCat("I3: the state in etcd: ", why));
    if (life->ending) return;
    Sim().SleepUntil(Sim().now() + 500 * kMs);
  }
  home->NoteRead([shared = etcd.get()] { return shared->Refusal(); });
  life->directory = &home->state();
  life->etcd = etcd.get();
  etcd->Start(AddressOf(node));
  uint64_t lead_count = 0;
  while (!life->ending) {
    Sim().Block(Sim().now() + 500 * kMs, [&] { return life->ending; });
    const uint64_t now = etcd->report().lead_count;
    if (std::exchange(lead_count, now) != now) {
      Say(absl::StrCat("leads: ", life->process.name));
      network_.Count(Fault::kLeadChange);
      truth_.CheckDirectory(*life, [&etcd, now] {
        const EtcdDirectory::Report report = etcd->report();
        return report.leads && report.lead_count == now;
      });
    }
    TickDirectory(home->state());
  }
  etcd->End();
  Sim().Block(kNever, [&] { return life->call_count == 0; });
  EndWatches(*life);
  life->directory = nullptr;
  life->etcd = nullptr;
}

void Fleet::RunEtcd(Life* life) {
  etcd_->Return();
  Sim().Block(kNever, [&] { return life->ending && life->call_count == 0; });
}

}  // namespace ckv::sim
