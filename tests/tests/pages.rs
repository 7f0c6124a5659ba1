//! `gadm man` and `gadm completions`, which collect what each program prints of itself.

use gpupool_tests::pool::{programs, say, temp_dir};
use std::process::Command;

#[test]
fn pages_and_completions_cover_all_commands() {
    let temp = temp_dir();
    let dir = temp.path().join("man");
    let gadm = programs().join("gadm");
    let said = say(Command::new(&gadm).args(["man", "--dir"]).arg(&dir));
    assert_eq!(
        said.out,
        "gsub.1\ngrun.1\ngq.1\ngdel.1\ngnodes.1\ngacct.1\ngtop.1\nsalloc.1\nsattach.1\nsbcast.1\ngadm.8\ngpupool-reasons.7\n",
        "{said:?}"
    );
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    assert!(
        page("gsub.1").contains("\\-\\-dependency"),
        "the table of options is on the page"
    );
    assert!(page("gadm.8").contains("GADM NODE DRAIN") && page("gadm.8").contains("GADM SANDBOX"));
    assert!(
        page("salloc.1").contains("\\-\\-kill\\-command") && page("salloc.1").contains("EXAMPLES")
    );
    assert!(page("sattach.1").contains("\\-\\-layout"));
    for shell in ["bash", "zsh", "fish"] {
        let script = say(Command::new(&gadm).args(["completions", shell])).out;
        for command in ["gsub", "gq", "gdel", "gnodes", "gacct", "gadm"] {
            assert!(script.contains(command), "{command} in {shell}");
        }
        let one = say(Command::new(&gadm).args(["completions", shell, "--command", "gdel"])).out;
        assert!(
            one.contains("gdel") && !one.contains("gnodes"),
            "gdel's alone in {shell}"
        );
    }
}
