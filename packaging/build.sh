#!/bin/bash
# Makes deb and rpm of all packages from a release build: what goes where is in packaging/files, what a package is in packaging/*/control.
# The same tree and build give the same bytes. Usage: packaging/build.sh [PROGRAMS [OUT]]; VERSION=... names another version than Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$(realpath "${1:-target/release}")
out=$(realpath -m "${2:-target/packages}")
version=${VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)}
maintainer=${MAINTAINER:-gpupool maintainers <maintainers@gpupool.invalid>}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export LC_ALL=C.UTF-8 TZ=UTC
umask 022

fail() { echo "packages: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
made=$work/made

# Pages, completions and Slurm's names as the programs themselves tell them; sample configuration as comments.
write_made() {
    mkdir -p "$made"/{bash,zsh,fish,etc}
    "$programs/gadm" man --dir "$made/man" >/dev/null
    "$programs/gadm" slurm-names "$made/slurm" >/dev/null
    local name
    for name in gsub grun gq gdel gnodes gacct gtop gadm; do
        "$programs/gadm" completions bash --command "$name" >"$made/bash/$name"
        "$programs/gadm" completions zsh --command "$name" >"$made/zsh/_$name"
        "$programs/gadm" completions fish --command "$name" >"$made/fish/$name.fish"
    done
    for name in gpuctld gpud gpupool; do
        sed 's/^[^#]/#&/' "etc/$name.toml" >"$made/etc/$name.toml"
    done
}

# place FORMAT STAGE FILE DIRECTORY: one file, link or program to where it goes.
place() {
    local stage=$2 file=$3 to=$2$4
    case $1 in
    deb) to=${to/@pam@/\/usr\/lib\/$(gcc -print-multiarch)\/security} to=${to/@zsh@/\/usr\/share\/zsh\/vendor-completions} ;;
    rpm) to=${to/@pam@/\/usr\/lib64\/security} to=${to/@zsh@/\/usr\/share\/zsh\/site-functions} ;;
    esac
    [[ $to == *.so ]] || to=$to/$(basename "${file#link:}")
    mkdir -p "$(dirname "$to")"
    if [[ $file == link:* ]]; then
        ln -sr "$stage${file#link:}" "$to"
    elif [ -L "$file" ]; then
        ln -sr "$stage/usr/bin/$(basename "$(readlink "$file")")" "$to"
    else
        install -m "$(mode_of "$file")" "$file" "$to"
        [[ $file != "$programs"/* ]] || strip --strip-unneeded --remove-section=.comment "$to"
        [[ $to != "$stage"/usr/share/man/* ]] || gzip -9n "$to"
    fi
    : >"$work/placed/$(basename "$(dirname "$file")")-$(basename "$file")"
}

mode_of() { if [ -x "$1" ] && [[ $1 != *.so ]]; then echo 755; else echo 644; fi; }

# stage FORMAT PACKAGE: the package's files below a directory, whose name is printed.
stage() {
    local dir=$work/$1/$2 package source to file
    mkdir -p "$dir" "$work/placed"
    while read -r package source to; do
        [ "$package" = "$2" ] || continue
        source=${source/#target\//$programs/} source=${source/#made\//$made/}
        for file in $source; do
            [[ $file == link:* ]] || [ -e "$file" ] || fail "packaging/files names $source, which is not there"
            place "$1" "$dir" "$file" "$to"
        done
    done < <(grep -v '^#' packaging/files)
    local doc=$dir/usr/share/doc/gpupool-$2
    mkdir -p "$doc"
    install -m 644 packaging/copyright "$doc/copyright"
    [ "$2" != client ] || gzip -9nc "$work/licences" >"$doc/licences-of-libraries.gz"
    changelog | gzip -9nc >"$doc/changelog.gz"
    find "$dir" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
    echo "$dir"
}

changelog() {
    printf 'gpupool (%s) unstable; urgency=medium\n\n  * What users and administrators notice is in CHANGELOG.md.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$(date -Rd "@$SOURCE_DATE_EPOCH")"
}

# field PACKAGE NAME: of its control file.
field() { sed -n "s/^$2: //p" "packaging/$1/control" | sed "s/@version@/$version/g"; }
description() { sed -n '/^Description/,$p' "packaging/$1/control" | sed 1d; }

# What libraries of the system the programs below a directory load, as Debian's packages.
debian_libraries() {
    local programs_in loaded glibc
    programs_in=$(find "$1" -type f \( -perm -u+x -o -name '*.so' \) -exec sh -c 'head -c4 "$1" | grep -q ELF && echo "$1"' _ {} \;)
    [ -n "$programs_in" ] || return 0
    # shellcheck disable=SC2086
    loaded=$(objdump -p $programs_in | sed -n 's/^ *NEEDED *//p' | sort -u)
    # shellcheck disable=SC2086
    glibc=$(objdump -T $programs_in | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    printf 'libc6 (>= %s)' "${glibc#GLIBC_}"
    local library
    for library in $loaded; do
        case $library in
        libc.so.6 | libm.so.6 | ld-linux*) ;;
        libgcc_s.so.1) printf ', libgcc-s1' ;;
        *) fail "no package is known for $library" ;;
        esac
    done
}

daemon_of() { case $1 in controller) echo gpuctld ;; node) echo gpud ;; esac; }

# script PACKAGE FILE: a script of a package with a daemon.
script() { sed "s/@package@/$1/g; s/@daemon@/$(daemon_of "$1")/g" "packaging/$2"; }

make_deb() {
    local package=$1 dir name
    dir=$(stage deb "$package")
    name=gpupool-$package
    mkdir "$dir/DEBIAN"
    local depends libraries
    libraries=$(debian_libraries "$dir")
    depends=$(field "$package" Depends)
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nPriority: optional\n' \
            "$name" "$version" "$(dpkg --print-architecture)" "$maintainer"
        printf 'Installed-Size: %s\n' "$(find "$dir" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')"
        [ -z "$libraries$depends" ] || printf 'Depends: %s\n' "$libraries${libraries:+${depends:+, }}$depends"
        sed "/^Depends\|^Rpm-/d; s/@version@/$version/g" "packaging/$package/control"
    } >"$dir/DEBIAN/control"
    (cd "$dir" && find . -type f -path './etc/*' | sed 's,^\.,,' | sort) >"$dir/DEBIAN/conffiles"
    [ -s "$dir/DEBIAN/conffiles" ] || rm "$dir/DEBIAN/conffiles"
    (cd "$dir" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$dir/DEBIAN/md5sums"
    if [ -n "$(daemon_of "$package")" ]; then
        script "$package" installed.sh >"$dir/DEBIAN/postinst"
        script "$package" removing.sh >"$dir/DEBIAN/prerm"
        { script "$package" removed.sh; cat "packaging/$package/purge"; } >"$dir/DEBIAN/postrm"
        chmod 755 "$dir"/DEBIAN/{postinst,prerm,postrm}
    fi
    find "$dir/DEBIAN" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$dir" "$out/${name}_${version}_$(dpkg --print-architecture).deb" >/dev/null
}

# Names as rpm writes them: "a (= 1)" is "a = 1".
as_rpm() { sed 's/(\(.*\))/\1/'; }

make_spec() {
    local package=$1 dir=$2 key word
    printf 'Name: gpupool-%s\nVersion: %s\nRelease: 1\nSummary: %s\nLicense: Apache-2.0\n' \
        "$package" "$version" "$(field "$package" Description)"
    for word in Depends:Requires Recommends:Recommends Rpm-Provides:Provides Rpm-Conflicts:Conflicts; do
        key=${word%:*}
        field "$package" "$key" | tr ',' '\n' | sed '/^$/d; s/^ */'"${word#*:}"': /' | as_rpm
    done
    printf '%%description\n%s\n%%install\ncp -a %s/. %%{buildroot}\n' "$(description "$package")" "$dir"
    if [ -n "$(daemon_of "$package")" ]; then
        printf '%%post\n%s\n%%preun\n%s\n%%postun\n%s\n' "$(script "$package" installed.sh)" "$(script "$package" removing.sh)" \
            "$(script "$package" removed.sh)"
    fi
    printf '%%files\n%%defattr(-,root,root)\n'
    (cd "$dir" && find . -name gpupool -type d -path './etc/*' | sed 's,^\.,%dir ,')
    (cd "$dir" && find . ! -type d | sort | sed 's,^\.,,; s,^/etc/,%config(noreplace) &,; s,^/usr/share/doc/,%doc &,')
}

make_rpm() {
    local package=$1 dir
    dir=$(stage rpm "$package")
    make_spec "$package" "$dir" >"$work/gpupool-$package.spec"
    rpmbuild -bb --quiet --define "_topdir $work/rpm-build" --define "_rpmdir $out" --define '_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
        --define '_buildhost localhost' --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
        --define '_build_id_links none' --define '__os_install_post %{nil}' --define 'debug_package %{nil}' --define '_binary_payload w6.xzdio' \
        "$work/gpupool-$package.spec"
}

for tool in dpkg-deb rpmbuild objdump strip; do
    command -v "$tool" >/dev/null || fail "$tool is missing: tests/setup.sh packages"
done
[ -x "$programs/gpuctld" ] || fail "no release build in $programs: cargo build --release"
mkdir -p "$out"
rm -f "$out"/gpupool-*.{deb,rpm,spdx.json}
write_made
packaging/licences.sh >"$work/licences"
packaging/sbom.sh "$version" >"$out/gpupool-$version.spdx.json"
for package in controller node client slurm sandbox; do
    make_deb "$package"
    make_rpm "$package"
done
for file in "$made"/*/*; do
    [ -e "$work/placed/$(basename "$(dirname "$file")")-$(basename "$file")" ] || fail "packaging/files sends $(basename "$file") to no package"
done
(cd "$out" && sha256sum gpupool-*.deb gpupool-*.rpm gpupool-*.spdx.json >SHA256SUMS && cat SHA256SUMS)
