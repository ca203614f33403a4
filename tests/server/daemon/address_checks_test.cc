// Goal: addresses that keep other hosts from a process are refused or warned of, each with its key.
// Method: flags are read as ckvd reads them. Names are resolved by a table of the test's own, as on
// a host that knows itself by 127.0.1.1.

#include "server/daemon/address_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace ckv {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<ParsedConfig> ReadFlagsOnly(const std::vector<std::string>& arguments) {
  return ReadConfig(arguments, [](const std::string&) { return std::nullopt; });
}

std::string RefusalOf(const std::vector<std::string>& arguments) {
  const auto parsed = ReadFlagsOnly(arguments);
  EXPECT_FALSE(parsed.ok());
  return std::string(parsed.status().message());
}

absl::StatusOr<std::vector<std::string>> ResolveInTest(const std::string& host) {
  const std::map<std::string, std::vector<std::string>> known = {
      {"host-1", {"10.77.0.1"}}, {"host-2", {"127.0.1.1"}}, {"both", {"127.0.1.1", "10.77.0.2"}}};
  const auto found = known.find(host);
  if (found == known.end()) return absl::NotFoundError("Name or service not known");
  return found->second;
}

std::vector<std::string> WarningsOf(const std::vector<std::string>& arguments) {
  const auto parsed = ReadFlagsOnly(arguments);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return {};
  return AddressWarnings(parsed->config, ResolveInTest);
}

std::vector<std::string> WarningsOfHolder(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--role=holder", "--directory=10.77.0.1:7400"});
  return WarningsOf(arguments);
}

TEST(AddressChecks, LanesAreReachedWhereTheControlPlaneIs) {
  const auto data_of = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--role=holder", "--directory=h:1"});
    const auto parsed = ReadFlagsOnly(arguments);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->config.data_listen : "";
  };
  EXPECT_EQ(data_of({}), "127.0.0.1:0");
  EXPECT_EQ(data_of({"--listen=10.77.0.1:7401"}), "10.77.0.1:0");
  EXPECT_EQ(data_of({"--listen=[fd00::1]:7401"}), "[fd00::1]:0");
  EXPECT_EQ(data_of({"--listen=0.0.0.0:1", "--advertise=h1:1"}), "0.0.0.0:0");
  EXPECT_EQ(data_of({"--listen=10.77.0.1:1", "--data-listen=10.78.0.1:2"}), "10.78.0.1:2");
}

TEST(AddressChecks, AHolderThatPeersFindAndCannotReachIsRefused) {
  const std::vector<std::string> holder = {"--role=holder", "--directory=h:1",
                                           "--listen=10.77.0.1:7401", "--data-listen=127.0.0.1:0"};
  EXPECT_EQ(RefusalOf(holder),
            "data_listen: peers find this holder at 10.77.0.1:7401, and no other host reaches "
            "127.0.0.1:0: set --data-listen 10.77.0.1:0, or take tcp out of fabrics");
  auto others = holder;
  others.emplace_back("--fabrics=shm");
  EXPECT_TRUE(ReadFlagsOnly(others).ok());
  auto near = holder;
  near.emplace_back("--advertise=localhost:7401");
  EXPECT_TRUE(ReadFlagsOnly(near).ok()) << "for this host alone";
}

TEST(AddressChecks, NoPeerReachesTheWildcardAddress) {
  EXPECT_EQ(RefusalOf({"--role=directory", "--listen=0.0.0.0:7400"}),
            "advertise: no peer can reach 0.0.0.0:7400: name the address that peers use");
  EXPECT_EQ(RefusalOf({"--role=directory", "--listen=[::]:7400", "--advertise=*:7400"}),
            "advertise: no peer can reach *:7400");
  EXPECT_THAT(WarningsOf({"--role=directory", "--listen=0.0.0.0:7400", "--advertise=host-1:7400"}),
              IsEmpty());
}

TEST(AddressChecks, AddressesThatOthersReach) {
  EXPECT_THAT(WarningsOfHolder({"--listen=10.77.0.2:7401"}), IsEmpty());
  EXPECT_THAT(WarningsOfHolder({"--listen=[fd00::2]:7401"}), IsEmpty());
  EXPECT_THAT(WarningsOfHolder({"--listen=both:7401"}), IsEmpty());
  // Others may know the name by the host's other address.
  EXPECT_THAT(WarningsOfHolder({"--listen=0.0.0.0:7401", "--advertise=host-2:7401"}), IsEmpty());
  // All on one host.
  EXPECT_THAT(WarningsOf({"--role=holder", "--directory=127.0.0.1:7400"}), IsEmpty());
  EXPECT_THAT(WarningsOf({"--role=directory,holder,requester"}), IsEmpty());
  // Engines of the same host alone use this one.
  EXPECT_THAT(WarningsOf({"--role=requester", "--directory=10.77.0.1:7400"}), IsEmpty());
}

TEST(AddressChecks, AHolderWithADirectoryElsewhereThatOnlyItsHostReaches) {
  EXPECT_THAT(WarningsOfHolder({}),
              ElementsAre("listen: the directory is at 10.77.0.1:7400, and no other host reaches "
                          "this holder at 127.0.0.1:7401: set --listen"));
  EXPECT_THAT(WarningsOfHolder({"--listen=host-2:7401"}),
              ElementsAre("listen: the directory is at 10.77.0.1:7400, and no other host reaches "
                          "this holder at host-2:7401, which is 127.0.1.1 here: set --listen"));
}

TEST(AddressChecks, ANameThatIsLoopbackHere) {
  EXPECT_THAT(
      WarningsOfHolder({"--listen=10.77.0.2:7401", "--data-listen=host-2:7402"}),
      ElementsAre("data_listen: peers find this holder at 10.77.0.2:7401, and no other host "
                  "reaches host-2:7402, which is 127.0.1.1 here"));
  EXPECT_THAT(
      WarningsOfHolder({"--listen=10.77.0.2:7401", "--data-listen=host-2:7402", "--fabrics=shm"}),
      IsEmpty());
  EXPECT_THAT(
      WarningsOfHolder({"--listen=host-2:7401", "--advertise=10.77.0.2:7401"}),
      ElementsAre("listen: peers are sent to 10.77.0.2:7401, and no other host reaches "
                  "host-2:7401, which is 127.0.1.1 here",
                  "data_listen: peers find this holder at 10.77.0.2:7401, and no other host "
                  "reaches host-2:0, which is 127.0.1.1 here"));
}

TEST(AddressChecks, APeersAddressThatIsNotThisHosts) {
  EXPECT_THAT(WarningsOf({"--role=requester", "--listen=127.0.0.1:7311",
                          "--advertise=10.77.0.1:7311", "--directory=10.77.0.1:7400"}),
              ElementsAre("listen: peers are sent to 10.77.0.1:7311, and no other host reaches "
                          "127.0.0.1:7311"));
}

TEST(AddressChecks, WarnsOfANameThatDoesNotResolve) {
  EXPECT_THAT(WarningsOfHolder({"--listen=0.0.0.0:7401", "--advertise=host-9:7401"}),
              ElementsAre("advertise: this host cannot resolve host-9:7401: Name or service not "
                          "known. Check that the others can, or give a number"));
  EXPECT_THAT(WarningsOf({"--role=requester", "--directory=host-9:7400"}),
              ElementsAre("directory: this host cannot resolve host-9:7400: Name or service not "
                          "known"));
}

TEST(AddressChecks, ADirectoryAddressThatOthersCannotReach) {
  EXPECT_THAT(
      WarningsOf({"--role=requester", "--listen=10.77.0.1:7311", "--directory=127.0.0.1:7400"}),
      ElementsAre("directory: ckvctl on other hosts is sent to 127.0.0.1:7400: name the "
                  "address that they use"));
  EXPECT_THAT(WarningsOf({"--role=requester", "--directory=0.0.0.0:7400"}),
              ElementsAre("directory: 0.0.0.0:7400 is this host, whichever that is: name the "
                          "address where it listens"));
}

TEST(AddressChecks, AListOfDirectoriesWithAnError) {
  const auto refusal_of = [](const std::string& list) {
    return RefusalOf({"--role=holder", "--directory=" + list});
  };
  EXPECT_THAT(refusal_of("h:1,h"), HasSubstr("'h' is not host:port"));
  EXPECT_THAT(refusal_of("h:1,"), HasSubstr("'' is not host:port"));
  EXPECT_THAT(refusal_of("h:1,g:1,h:1"), HasSubstr("h:1 is in the list twice"));
  EXPECT_THAT(refusal_of("h:1,h:2,h:3,h:4,h:5,h:6,h:7,h:8,h:9"),
              HasSubstr("more than 8 addresses"));
}

TEST(AddressChecks, EachOfSeveralDirectories) {
  EXPECT_THAT(WarningsOf({"--role=requester", "--listen=10.77.0.1:7311",
                          "--directory=10.77.0.1:7400,host-9:7400,127.0.0.1:7400"}),
              ElementsAre("directory: this host cannot resolve host-9:7400: Name or service not "
                          "known",
                          "directory: ckvctl on other hosts is sent to 127.0.0.1:7400: name the "
                          "address that they use"));
}

TEST(AddressChecks, ResolvesWithTheMachinesResolver) {
  const auto own = ResolveHost("localhost");
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_THAT(*own, Contains(AnyOf("127.0.0.1", "::1")));
  // A name that DNS cannot have: the answer needs no network.
  EXPECT_FALSE(ResolveHost("no..such").ok());
}

TEST(AddressChecks, HelpHasNoAddresses) { EXPECT_THAT(WarningsOf({"--help"}), IsEmpty()); }

}  // namespace
}  // namespace ckv
