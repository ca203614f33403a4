#include "tests/sim/node.h"

#include "absl/strings/str_cat.h"

namespace ckv::sim {
namespace {

std::map<const Process*, Life*>& Lives() {
  static auto* const lives = new std::map<const Process*, Life*>;
  return *lives;
}

}  // namespace

Life::Life(std::string name, uint32_t node) {
  process.name = std::move(name);
  process.node = node;
  Lives()[&process] = this;
}

Life& CurrentLife() { return *Lives().at(Sim().current_process()); }

std::string AddressOf(const Node& node) {
  return absl::StrCat("10.0.0.", node.number + 1, ":7400");
}

Node* NodeAt(const std::vector<std::unique_ptr<Node>>& nodes, std::string_view address) {
  for (const auto& node : nodes) {
    if (AddressOf(*node) == address) return node.get();
  }
  return nullptr;
}

void Serve(Life* life, absl::AnyInvocable<void()> call) {
  life->calls.push_back(std::move(call));
  if (life->idle_count >= life->calls.size()) return;
  Sim().StartIn(&life->process, [life] {
    while (true) {
      ++life->idle_count;
      Sim().Block(kNever, [life] { return !life->calls.empty(); });
      --life->idle_count;
      absl::AnyInvocable<void()> next = std::move(life->calls.front());
      life->calls.pop_front();
      ++life->call_count;
      next();
      --life->call_count;
    }
  });
}

}  // namespace ckv::sim
