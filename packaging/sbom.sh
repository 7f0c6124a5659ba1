#!/bin/bash
# The libraries in our programs as a bill of materials, SPDX 2.3 in JSON: names, versions, licences, and the SHA-256 of the sources.
# Usage: packaging/sbom.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8 TZ=UTC
version=$1
made=$(date -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}" +%Y-%m-%dT%H:%M:%SZ)

# NAME VERSION SHA-256 of every library in Cargo.lock, then NAME VERSION|LICENCE of the libraries in our programs.
{
    awk -F'"' '/^name/ { name = $2 } /^version/ { version = $2 } /^checksum/ { print "sum", name, version, $2 }' Cargo.lock
    packaging/licences.sh list
} | awk -v version="$version" -v made="$made" '
    function quoted(text) { gsub(/[\\"]/, "\\\\&", text); return "\"" text "\"" }
    function id(name, version, text) { text = name "-" version; gsub(/[^A-Za-z0-9.-]/, "-", text); return "SPDXRef-" text }
    $1 == "sum" { sum[$2 " " $3] = $4; next }
    { split($0, part, "|"); split(part[1], word, " "); names[++count] = word[1]; versions[count] = word[2]; licences[count] = part[2] }
    END {
        gpupool = id("gpupool", version)
        printf "{\"spdxVersion\":\"SPDX-2.3\",\"dataLicense\":\"CC0-1.0\",\"SPDXID\":\"SPDXRef-DOCUMENT\",\"name\":\"gpupool-%s\",", version
        printf "\"documentNamespace\":\"https://gpupool.invalid/sbom/%s/%s\",", version, made
        printf "\"creationInfo\":{\"created\":\"%s\",\"creators\":[\"Tool: gpupool-packaging-sbom\"]},\n\"packages\":[\n", made
        printf "{\"SPDXID\":\"%s\",\"name\":\"gpupool\",\"versionInfo\":\"%s\",\"downloadLocation\":\"NOASSERTION\",\"filesAnalyzed\":false,\"licenseDeclared\":\"Apache-2.0\"}", gpupool, version
        for (n = 1; n <= count; n++) {
            licence = licences[n]; gsub(/\//, " OR ", licence); gsub(/ +/, " ", licence)
            printf ",\n{\"SPDXID\":\"%s\",\"name\":%s,\"versionInfo\":%s,", id(names[n], versions[n]), quoted(names[n]), quoted(versions[n])
            printf "\"downloadLocation\":\"https://crates.io/api/v1/crates/%s/%s/download\",\"filesAnalyzed\":false,\"licenseDeclared\":%s,", names[n], versions[n], quoted(licence)
            if ((names[n] " " versions[n]) in sum) printf "\"checksums\":[{\"algorithm\":\"SHA256\",\"checksumValue\":\"%s\"}],", sum[names[n] " " versions[n]]
            printf "\"externalRefs\":[{\"referenceCategory\":\"PACKAGE-MANAGER\",\"referenceType\":\"purl\",\"referenceLocator\":\"pkg:cargo/%s@%s\"}]}", names[n], versions[n]
        }
        printf "],\n\"relationships\":[\n{\"spdxElementId\":\"SPDXRef-DOCUMENT\",\"relationshipType\":\"DESCRIBES\",\"relatedSpdxElement\":\"%s\"}", gpupool
        for (n = 1; n <= count; n++)
            printf ",\n{\"spdxElementId\":\"%s\",\"relationshipType\":\"DEPENDS_ON\",\"relatedSpdxElement\":\"%s\"}", gpupool, id(names[n], versions[n])
        print "]}"
    }'
