//! A run directory in memory and a clock that only events move; no file is ever late.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use slime_exchange::{Bytes, Fill, RawFiles, Result};

/// The disk and the clock of all owners.
#[derive(Default)]
pub struct World {
    /// Milliseconds since the start.
    pub now_ms: u64,
    /// Grows with every file that is written, renamed or linked.
    pub num_changes: u64,
    files: BTreeMap<String, (Bytes, Rc<()>)>,
}

/// What one owner sees of it: everything.
#[derive(Clone)]
pub struct Files(pub Rc<RefCell<World>>);

impl RawFiles for Files {
    fn now_ms(&self) -> u64 {
        self.0.borrow().now_ms
    }

    fn pause(&mut self, _ms: u64) {}

    fn write_tmp(&mut self, path: &str, fill: Fill<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        fill(&mut bytes)?;
        self.0.borrow_mut().files.insert(path.to_owned(), (bytes.into(), Rc::new(())));
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let mut world = self.0.borrow_mut();
        if let Some(file) = world.files.remove(from) {
            world.num_changes += u64::from(!to.contains("heartbeat"));
            world.files.insert(to.to_owned(), file);
        }
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> Result<bool> {
        let mut world = self.0.borrow_mut();
        let is_free = !world.files.contains_key(to);
        if let Some(file) = world.files.get(from).cloned().filter(|_| is_free) {
            world.num_changes += 1;
            world.files.insert(to.to_owned(), file);
        }
        Ok(is_free)
    }

    fn num_links(&mut self, path: &str) -> Result<Option<u64>> {
        let world = self.0.borrow();
        Ok(world.files.get(path).map(|(_, links)| Rc::strong_count(links) as u64))
    }

    fn sync_dir(&mut self, _dir: &str) -> Result<()> {
        Ok(())
    }

    fn read(&mut self, path: &str) -> Result<Option<Bytes>> {
        Ok(self.0.borrow().files.get(path).map(|(bytes, _)| bytes.clone()))
    }

    fn exists(&mut self, path: &str) -> Result<bool> {
        Ok(self.0.borrow().files.contains_key(path))
    }

    fn list(&mut self, dir: &str) -> Result<Vec<String>> {
        let (world, prefix) = (self.0.borrow(), format!("{dir}/"));
        let under = world.files.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        let names: BTreeSet<&str> =
            under.filter_map(|(path, _)| path[prefix.len()..].split('/').next()).collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        let prefix = format!("{path}/");
        self.0.borrow_mut().files.retain(|name, _| name != path && !name.starts_with(&prefix));
        Ok(())
    }
}
