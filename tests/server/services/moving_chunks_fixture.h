// A directory, holders with chunks and ckvctl's commands, all in this process.

#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/tools/ctl/ctl.h"
#include "store/corpus/partition.h"
#include "tests/server/services/services_fixture.h"

namespace ckv::test {

class MovingChunksTest : public ServicesTest {
 protected:
  struct Ran {
    int code = 0;
    ctl::Json json;
    std::string text;
    std::string err;
  };
  // A command of ckvctl, without and with -o json.
  Ran Run(std::vector<std::string> arguments, bool json = true) {
    if (json) arguments.insert(arguments.end(), {"-o", "json"});
    Ran ran = RunAt(directory_->address(), std::move(arguments));
    if (json && ran.code == 0) ran.json = ctl::Json::parse(ran.text);
    return ran;
  }
  // Runs a command that is given that directory, or none.
  static Ran RunAt(const std::string& directory, std::vector<std::string> arguments) {
    ctl::Ctl ctl;
    std::ostringstream out, err;
    ctl.out = &out;
    ctl.err = &err;
    ctl.fleet.directory = directory;
    Ran ran;
    ran.code = ctl::RunCtl(ctl, std::move(arguments));
    ran.text = out.str();
    ran.err = err.str();
    return ran;
  }
  ctl::Fleet MakeFleet() {
    ctl::FleetOptions options;
    options.directory = directory_->address();
    return ctl::Fleet(options, Clock::Real());
  }

  void PutOn(size_t holder, const TestCorpus& corpus) {
    for (const TestChunk& chunk : corpus.chunks) {
      const grpc::Status put = Put(*holder_stubs_[holder], corpus.geometry, chunk);
      EXPECT_TRUE(put.ok() || put.error_code() == grpc::StatusCode::ALREADY_EXISTS);
    }
  }
  // Every chunk on each of `holders`, published.
  Corpus LoadOn(const std::string& name, const TestCorpus& corpus,
                const std::vector<size_t>& holders, const std::string& tenant = "") {
    std::vector<HolderId> names;
    for (const size_t holder : holders) {
      names.push_back({"h" + std::to_string(holder)});
      PutOn(holder, corpus);
    }
    const grpc::Status published = Publish(*directory_stub_, corpus.Publish(name, tenant, {names}));
    EXPECT_TRUE(published.ok()) << published.error_message();
    return Get(name);
  }
  // Asks again while the directory cannot be reached: a subchannel of the one before it may still
  // be in its backoff.
  Corpus Get(const std::string& name) {
    const Instant give_up = Soon();
    auto corpus = MakeFleet().GetCorpus(name);
    while (absl::IsUnavailable(corpus.status()) && Clock::Real()->Now() < give_up)
      corpus = MakeFleet().GetCorpus(name);
    return *corpus;
  }
  // As when its orphans are not dropped: their holder was offline, or the command was killed.
  void DropCorpusOnly(const std::string& name) {
    v1::DropCorpusRequest request;
    request.set_name(name);
    v1::DropCorpusReply reply;
    EXPECT_TRUE(directory_stub_->DropCorpus(Call().get(), request, &reply).ok());
  }
  bool Ask(size_t holder, const TestCorpus& corpus, size_t chunk) {
    v1::GetChunkInfoRequest request;
    request.set_id(std::string(corpus.chunks[chunk].info.id.AsBytes()));
    *request.mutable_geometry() = ToProto(corpus.geometry);
    v1::GetChunkInfoReply reply;
    return holder_stubs_[holder]->GetChunkInfo(Call().get(), request, &reply).ok();
  }
  void Drop(size_t holder, const ChunkId& id) {
    v1::DropChunkRequest request;
    request.set_id(std::string(id.AsBytes()));
    v1::DropChunkReply reply;
    EXPECT_TRUE(holder_stubs_[holder]->DropChunk(Call().get(), request, &reply).ok());
  }
  std::set<std::string> Listed(size_t holder) {
    v1::ListChunksReply page;
    EXPECT_TRUE(holder_stubs_[holder]->ListChunks(Call().get(), {}, &page).ok());
    std::set<std::string> ids;
    for (const auto& chunk : page.chunks()) ids.insert(chunk.id());
    return ids;
  }
  // Until everything there is idle for 2 ms.
  void AwaitIdle(size_t holder) {
    const Instant deadline = Soon();
    for (uint64_t idle = 0; idle < 2 && Clock::Real()->Now() < deadline;) {
      v1::ListChunksReply page;
      EXPECT_TRUE(holder_stubs_[holder]->ListChunks(Call().get(), {}, &page).ok());
      idle = UINT64_MAX;
      for (const auto& chunk : page.chunks()) idle = std::min(idle, chunk.idle_ms());
    }
  }
  // Each holder has exactly what the corpus places there.
  void ExpectPlaced(const Corpus& corpus) {
    std::vector<std::set<std::string>> expected(holders_.size());
    for (const ChunkPlacement& chunk : corpus.chunks) {
      for (const HolderId& holder : chunk.holders())
        expected[std::stoul(holder.name.substr(1))].insert(std::string(chunk.id.AsBytes()));
    }
    for (size_t i = 0; i < holders_.size(); ++i) EXPECT_EQ(Listed(i), expected[i]) << "h" << i;
  }
  PartitionPlan PlanOn(const Corpus& corpus, const std::vector<size_t>& holders,
                       uint32_t replicas = 1) {
    std::vector<WeightedHolder> targets;
    for (const size_t holder : holders) targets.push_back({{"h" + std::to_string(holder)}});
    return *PlanPartition(corpus, PartitionPolicy::kHash, targets, replicas);
  }

  static TestCorpus Chunks(size_t count, uint32_t seed = 1) {
    return MakeTestCorpus(TestGeometry(), std::vector<uint32_t>(count, 20), seed);
  }
};

}  // namespace ckv::test
